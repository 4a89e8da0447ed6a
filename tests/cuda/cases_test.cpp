// SPDX-License-Identifier: Apache-2.0
// Every file of tests/cases through the C++ API on a GPU, in every dtype that it has.
#include "case_file.hpp"
#include "device.hpp"

namespace {

using fixture::Layout;
using nlohmann::json;
using onchip::DType;
using onchip::Pass;

class GpuCases : public device::Needs<::testing::TestWithParam<std::filesystem::path>> {};

void check_dropout_mask(const json& file) {
  const json& options = file.at("options");
  fixture::Rng rng(1);
  fixture::Buffer mask(DType::uint8, options.at("shape").get<std::vector<std::int64_t>>(),
                       Layout::dense, rng);
  mask.poison();
  // A mask travels like an output.
  onchip::Attention host;
  host.out = mask.view();
  const device::Mirror mirror(host);
  mirror.upload();
  const device::Stream stream;
  onchip::dropout_mask(mirror.attention.out, options.at("p").get<double>(),
                       options.at("seed").get<std::uint64_t>(),
                       options.at("offset").get<std::uint64_t>(), stream.view());
  stream.synchronize();
  mirror.download();
  EXPECT_EQ(oracle::read(mask.view()).values,
            case_file::tensor_of(file.at("expect").at("keep")).values);
}

TEST_P(GpuCases, AreRight) {
  const json file = case_file::load(GetParam());
  if (file.at("op") == "dropout_mask") {
    check_dropout_mask(file);
    return;
  }
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    SCOPED_TRACE(onchip::name_of(dtype));
    case_file::Case x(file, dtype);
    const onchip::Attention& a = x.problem.attention;
    const auto width = [](const onchip::TensorView& view) { return view.shape[view.ndim - 1]; };
    if (width(a.q) % 8 != 0 || width(a.v) % 8 != 0) {
      EXPECT_THROW(x.problem.run_with(device::call, Pass::forward), onchip::Error);
      continue;
    }
    x.problem.run_with(device::call, Pass::forward);
    if (x.backward) x.problem.run_with(device::call, Pass::backward);
    x.expect_right(x.problem.results(), file.at("tolerance_float32").get<double>());
    EXPECT_TRUE(x.problem.guards_intact());
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuCases, ::testing::ValuesIn(case_file::all()),
                         [](const auto& info) { return info.param.stem().string(); });

}  // namespace
