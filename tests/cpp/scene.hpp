// SPDX-License-Identifier: Apache-2.0
// Small problems that have every tensor, for tests that change one thing about them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "onchip/attention.hpp"

namespace scene {

enum class Kind { dense, packed, paged };

/// B 2, Sq 5, Sk 7, Hq 4, Hkv 2, D 8, Dv 6 in float32; packed: lengths 4, 5 and 7, 3; paged: 5
/// pages of 4 keys, 2 for each sequence, of which 3 and 7 keys count.
class Scene {
 public:
  Scene(Kind kind, onchip::Pass pass);

  onchip::Attention attention;

  /// Runs the pass in an aligned workspace of the plan's size.
  void launch(const onchip::Plan& plan, onchip::Pass pass);

  /// The bytes of all tensors as they are now are those that `untouched` compares with.
  void remember();
  /// No tensor and no workspace has changed.
  [[nodiscard]] bool untouched() const;

 private:
  struct alignas(256) Line {
    std::byte bytes[256];
  };

  onchip::TensorView add(std::initializer_list<std::int64_t> shape);
  onchip::TensorView add_integers(std::initializer_list<std::int64_t> shape,
                                  std::initializer_list<std::int32_t> values);
  void add_inputs(Kind kind);
  void add_gradients();

  std::deque<std::vector<Line>> tensors_;
  std::deque<std::vector<Line>> before_;
  bool workspace_touched_ = false;
};

/// float32 of this shape in memory of its own that nobody reads: checks come first.
onchip::TensorView view_of_shape(std::initializer_list<std::int64_t> shape);

/// Good cu_seqlens of two sequences.
onchip::TensorView packed_lengths();

/// `call` throws onchip::Error with this code; its message begins with the argument and holds
/// `says`.
void expect_error(const std::function<void()>& call, onchip::ErrorCode code,
                  const std::string& argument, const std::string& says);

/// Whether this build has a CUDA backend, with or without a device for it.
bool has_cuda_backend();

}  // namespace scene
