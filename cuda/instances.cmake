# SPDX-License-Identifier: Apache-2.0
# Every kernel instance of this build: one row, one translation unit. Tiles must be those of the
# planner's table (cpp/src/host/tiles.hpp), whose kernel names these are; a test compares them.
#
# onchip_kernel(<name> SOURCE <header> FUNCTION <template> TRAITS <type> [SPILLS <bytes>])
#   kernels of one name run one after another, in the order of the rows.
# @dtype@ and @full@ in a row stand for every element type and for both variants: the lean one, and
# the full one with softcap, bias, ALiBi and dropout.
# SPILLS is what ptxas may spill, in bytes of one thread, over all architectures; more fails.

# Forward<Element, D, Br, Bc, warps, full, blocks of a multiprocessor>
onchip_kernels(sm80_fwd_@dtype@_d64@full@ SOURCE sm80/fwd.cuh FUNCTION sm80::forward_kernel
  TRAITS "sm80::Forward<@Element@, 64, 128, 128, 4, @kFull@, 2>")
onchip_kernels(sm80_fwd_@dtype@_d128@full@ SOURCE sm80/fwd.cuh FUNCTION sm80::forward_kernel
  TRAITS "sm80::Forward<@Element@, 128, 128, 64, 4, @kFull@, 2>")
onchip_kernels(sm80_fwd_@dtype@_d256@full@ SOURCE sm80/fwd.cuh FUNCTION sm80::forward_kernel
  TRAITS "sm80::Forward<@Element@, 256, 128, 64, 8, @kFull@, 1>")
onchip_kernels(sm80_fwd_@dtype@_d256_small@full@ SOURCE sm80/fwd.cuh FUNCTION sm80::forward_kernel
  TRAITS "sm80::Forward<@Element@, 256, 64, 32, 4, @kFull@, 1>")
