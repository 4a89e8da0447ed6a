# SPDX-License-Identifier: Apache-2.0
# Every kernel instance of this build: one row, one translation unit. Tiles must be those of the
# planner's table (cpp/src/host/tiles.hpp), whose kernel names these are; a test compares them.
#
# onchip_kernels(<name> SOURCE <header> FUNCTION <template> TRAITS <type>... [SHARED <bytes>]
#   [SPILLS <lean> [<full>]])
# Several traits make several kernels, that run one after another.
# @dtype@ and @full@ stand for every 16-bit element type and for both variants: the lean one, and the
# full one with softcap, bias, ALiBi and dropout. SHARED is the shared memory of a block where it is
# not the traits'. SPILLS is what ptxas may store to local memory in one thread, on any architecture,
# in bytes of the lean and of the full variant; 0 where it is not given. A row that has it says why.

# Forward<Element, D, Br, Bc, warps, full, blocks of a multiprocessor, Q in registers>. Scores
# and O take 192 of 255 registers; what spills is of the full variant's options, or read once a block.
onchip_kernels(sm80_fwd_@dtype@_d64@full@ SOURCE sm80/fwd.cuh FUNCTION sm80::forward_kernel
  TRAITS "sm80::Forward<@Element@, 64, 128, 128, 4, @kFull@, 2>" SPILLS 0 372)
onchip_kernels(sm80_fwd_@dtype@_d128@full@ SOURCE sm80/fwd.cuh FUNCTION sm80::forward_kernel
  TRAITS "sm80::Forward<@Element@, 128, 128, 64, 4, @kFull@, 2>" SPILLS 20 144)
onchip_kernels(sm80_fwd_@dtype@_d256@full@ SOURCE sm80/fwd.cuh FUNCTION sm80::forward_kernel
  TRAITS "sm80::Forward<@Element@, 256, 64, 32, 4, @kFull@, 2, true>" SPILLS 24 4)

# Backward<Element, D, Br, Bc, warps by keys, by queries, full, parts, stages, buffers, blocks of a
# multiprocessor>. By shared memory: 227 KiB, _single 163 KiB, _small 99 KiB. dK and dV hold 128
# registers of a thread: what is spilled belongs to the tile loop's bookkeeping (in lean
# variants on sm_80 only) and, in full ones, to options.
onchip_kernels(sm80_bwd_@dtype@_d64@full@ SOURCE sm80/bwd.cuh FUNCTION sm80::backward_kernel
  TRAITS "sm80::Backward<@Element@, 64, 64, 128, 4, 1, @kFull@, @kFull@ ? 4 : 2, 2, 2, 2>" SPILLS 40 72)
onchip_kernels(sm80_bwd_@dtype@_d128@full@ SOURCE sm80/bwd.cuh FUNCTION sm80::backward_kernel
  TRAITS "sm80::Backward<@Element@, 128, 64, 128, 4, 2, @kFull@, @kFull@ ? 2 : 1, 2, 2, 1>" SPILLS 16 280)
onchip_kernels(sm80_bwd_@dtype@_d128_single@full@ SOURCE sm80/bwd.cuh FUNCTION sm80::backward_kernel
  TRAITS "sm80::Backward<@Element@, 128, 64, 128, 4, 2, @kFull@, @kFull@ ? 2 : 1, 2, 1, 1>" SPILLS 12 328)
onchip_kernels(sm80_bwd_@dtype@_d128_small@full@ SOURCE sm80/bwd.cuh FUNCTION sm80::backward_kernel
  TRAITS "sm80::Backward<@Element@, 128, 64, 64, 2, 2, @kFull@, @kFull@ ? 2 : 1, 1, 1, 1>" SPILLS 212 312)
onchip_kernels(sm80_bwd_@dtype@_d256@full@ SOURCE sm80/bwd.cuh FUNCTION sm80::backward_kernel
  TRAITS "sm80::Backward<@Element@, 256, 64, 64, 2, 4, @kFull@, 1, 2, 2, 1>" SPILLS 8 112)
onchip_kernels(sm80_bwd_@dtype@_d256_single@full@ SOURCE sm80/bwd.cuh FUNCTION sm80::backward_kernel
  TRAITS "sm80::Backward<@Element@, 256, 64, 64, 2, 4, @kFull@, 1, 1, 1, 1>" SPILLS 28 108)
onchip_kernels(sm80_bwd_@dtype@_d256_small@full@ SOURCE sm80/bwd.cuh FUNCTION sm80::backward_kernel
  TRAITS "sm80::Backward<@Element@, 256, 32, 32, 2, 2, @kFull@, 1, 1, 1, 1>" SPILLS 0 32)

# Hopper: Forward<Element, D, Dv, warpgroups, Bc, buffers of K, of V, full, Q in registers,
# turns>. What is spilled belongs to the warp that hands out tiles, and in full variants to options.
macro(onchip_hopper_forward name shape levers)
  set(onchip_hopper_d${name} "${shape}, false, ${levers}")
  onchip_kernels(sm90_fwd_@dtype@_d${name}@full@ SOURCE sm90/fwd.cuh FUNCTION sm90::forward_kernel
    TRAITS "sm90::Forward<@Element@, ${shape}, @kFull@, ${levers}>" SPILLS 80 280)
endmacro()
onchip_hopper_forward(64_long "64, 64, 3, 128, 3, 3" "false, false")
onchip_hopper_forward(64 "64, 64, 4, 64, 4, 4" "false, false")
onchip_hopper_forward(96 "96, 96, 2, 128, 2, 3" "true, true")
onchip_hopper_forward(128 "128, 128, 2, 128, 2, 3" "true, true")
onchip_hopper_forward(192_128 "192, 128, 2, 128, 2, 2" "false, false")
onchip_hopper_forward(192 "192, 192, 2, 64, 3, 3" "false, false")
onchip_hopper_forward(256 "256, 256, 2, 64, 2, 2" "false, false")

# Around it, by query tile: dQ in one order (deterministic), and dbias. Every option is in them. At
# 256 dQ takes half of the registers.
set(spills_of_dq256 20)
foreach(dim IN ITEMS 64 128 256)
  foreach(kernel IN ITEMS dq dbias)
    onchip_kernels(sm80_${kernel}_@dtype@_d${dim} SOURCE sm80/bwd_query.cuh
      FUNCTION sm80::${kernel}_kernel TRAITS "sm80::Forward<@Element@, ${dim}, 64, 32, 4, true, 1>"
      SHARED "sm80::QueryTiles<Traits>::kBytes" SPILLS ${spills_of_${kernel}${dim}})
  endforeach()
endforeach()
