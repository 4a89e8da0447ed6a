// SPDX-License-Identifier: Apache-2.0
// Strides past 2^31 elements: address space is reserved, only the touched pages get memory.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <string>

#include "fixture.hpp"

namespace {

using fixture::Rng;
using onchip::DType;
using onchip::Pass;
using onchip::TensorView;
using Index = std::int64_t;
using Shape = std::vector<Index>;

constexpr Index kFar = (Index{1} << 31) + 24;  // elements

/// A tensor with the stride `kFar` (or its negative) along one axis and dense ones along the
/// others.
class FarTensor {
 public:
  FarTensor(DType dtype, const Shape& shape, std::size_t far_axis, bool reversed) {
    view_.dtype = dtype;
    view_.ndim = static_cast<std::int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), view_.shape.begin());
    Index stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      view_.stride[axis] = stride;
      if (axis != far_axis) stride *= shape[axis];
    }
    view_.stride[far_axis] = reversed ? -kFar : kFar;
    const Index span = kFar * (shape[far_axis] - 1);
    bytes_ = static_cast<std::size_t>((span + stride) * onchip::size_of(dtype));
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) return;
    view_.data = static_cast<char*>(memory_) + (reversed ? span * onchip::size_of(dtype) : 0);
  }
  ~FarTensor() {
    if (mapped()) munmap(memory_, bytes_);
  }
  FarTensor(const FarTensor&) = delete;
  FarTensor& operator=(const FarTensor&) = delete;

  [[nodiscard]] bool mapped() const { return memory_ != MAP_FAILED; }
  [[nodiscard]] const TensorView& view() const { return view_; }

 private:
  TensorView view_;
  void* memory_ = MAP_FAILED;
  std::size_t bytes_ = 0;
};

struct Far {
  const char* name;
  std::size_t axis;       // of q, k, v, out and the gradients
  std::size_t lse_axis;   // of lse (B, H, S)
  std::size_t bias_axis;  // of bias (B, H, Sq, Sk)
};

class Strides : public ::testing::TestWithParam<std::tuple<Far, DType, bool>> {};

TEST_P(Strides, PastTwoToThe31) {
  const auto& [far, dtype, reversed] = GetParam();
  std::vector<std::unique_ptr<FarTensor>> tensors;
  bool mapped = true;
  const auto make = [&](DType type, const Shape& shape, std::size_t axis, bool input) {
    tensors.push_back(std::make_unique<FarTensor>(type, shape, axis, reversed && input));
    mapped = mapped && tensors.back()->mapped();
    return tensors.back()->view();
  };
  const DType statistics = dtype == DType::float64 ? dtype : DType::float32;
  onchip::Attention a;
  a.options.causal = true;
  a.q = make(dtype, {2, 3, 2, 8}, far.axis, true);
  a.k = make(dtype, {2, 4, 2, 8}, far.axis, true);
  a.v = make(dtype, {2, 4, 2, 8}, far.axis, true);
  a.bias = make(dtype, {2, 2, 3, 4}, far.bias_axis, true);
  a.dout = make(dtype, {2, 3, 2, 8}, far.axis, true);
  a.dlse = make(statistics, {2, 2, 3}, far.lse_axis, true);
  const std::size_t inputs = tensors.size();
  a.out = make(dtype, {2, 3, 2, 8}, far.axis, false);
  a.lse = make(statistics, {2, 2, 3}, far.lse_axis, false);
  a.dq = make(dtype, {2, 3, 2, 8}, far.axis, false);
  a.dk = make(dtype, {2, 4, 2, 8}, far.axis, false);
  a.dv = make(dtype, {2, 4, 2, 8}, far.axis, false);
  a.dbias = make(dtype, {2, 2, 3, 4}, far.bias_axis, false);
  if (!mapped) GTEST_SKIP() << "this system refuses to reserve the address space";
  Rng rng(1);
  for (std::size_t n = 0; n < inputs; ++n) fixture::fill_normal(tensors[n]->view(), rng);
  fixture::call(a, Pass::forward);
  fixture::call(a, Pass::backward);
  const oracle::Results exact = oracle::attention(a, Pass::backward);
  const oracle::Results naive = oracle::attention(a, Pass::backward, dtype);
  fixture::expect_close("out", dtype, oracle::read(a.out), exact.out, naive.out);
  fixture::expect_close_lse("lse", dtype, oracle::read(a.lse), exact.lse);
  fixture::expect_close("dq", dtype, oracle::read(a.dq), exact.dq, naive.dq);
  fixture::expect_close("dk", dtype, oracle::read(a.dk), exact.dk, naive.dk);
  fixture::expect_close("dv", dtype, oracle::read(a.dv), exact.dv, naive.dv);
  fixture::expect_close("dbias", dtype, oracle::read(a.dbias), exact.dbias, naive.dbias);
}

std::string name_of_far(const ::testing::TestParamInfo<Strides::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + "_" +
         onchip::name_of(std::get<1>(info.param)) + (std::get<2>(info.param) ? "_reversed" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Attention, Strides,
    ::testing::Combine(::testing::Values(Far{"batch", 0, 0, 0}, Far{"rows", 1, 1, 2},
                                         Far{"heads", 2, 1, 1}),
                       ::testing::Values(DType::float32, DType::bfloat16, DType::float64),
                       ::testing::Bool()),
    name_of_far);

/// Pages 2^31 elements apart: the page number times the stride needs 64 bits.
TEST(PageStrides, PastTwoToThe31) {
  const FarTensor k(DType::float16, {3, 2, 1, 8}, 0, false);
  const FarTensor v(DType::float16, {3, 2, 1, 8}, 0, false);
  if (!k.mapped() || !v.mapped())
    GTEST_SKIP() << "this system refuses to reserve the address space";
  Rng rng(2);
  fixture::Problem problem;
  onchip::Attention& a = problem.attention;
  a.q = problem.add(DType::float16, {1, 2, 2, 8}, fixture::Layout::dense, rng);
  a.k = k.view();
  a.v = v.view();
  fixture::fill_normal(a.k, rng);
  fixture::fill_normal(a.v, rng);
  a.seqused_k = problem.add_integers({5}, rng);
  a.block_table = problem.add(DType::int32, {1, 3}, fixture::Layout::dense, rng);
  constexpr std::array<std::int32_t, 3> kPages{2, 0, 1};
  std::copy(kPages.begin(), kPages.end(), static_cast<std::int32_t*>(a.block_table.data));
  problem.add_results(false, fixture::Layout::dense, rng);
  problem.forward();
  problem.expect_right(false);
}

}  // namespace
