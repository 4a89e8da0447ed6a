# SPDX-License-Identifier: Apache-2.0
# Hopper tiles that onchip_tune times beside those of instances.cmake: bfloat16, lean. Included where
# ONCHIP_TUNE is on, and never part of what ships. A name is that of the row it competes with and "_t",
# then whatever tells it apart; the rest is as in onchip_hopper_forward.
macro(onchip_hopper_candidate name shape levers)
  onchip_kernel(sm90_fwd_bfloat16_d${name} SOURCE sm90/fwd.cuh FUNCTION sm90::forward_kernel
    TRAITS "sm90::Forward<__nv_bfloat16, ${shape}, false, ${levers}>"
    SHARED Traits::kSharedBytes SPILLS 2000)
endmacro()

# Other numbers of warpgroups and buffers, blocks of keys of another size, turns or none.
onchip_hopper_candidate(96_t_no_turns "96, 96, 2, 128, 2, 3" "true, false")
onchip_hopper_candidate(128_t_no_turns "128, 128, 2, 128, 2, 3" "true, false")
onchip_hopper_candidate(128_t2x128 "128, 128, 2, 128, 2, 2" "true, true")
onchip_hopper_candidate(128_t2x96 "128, 128, 2, 96, 3, 3" "true, true")
onchip_hopper_candidate(192_t_turns "192, 192, 2, 64, 3, 3" "false, true")
onchip_hopper_candidate(192_128_t_turns "192, 128, 2, 128, 2, 2" "false, true")
onchip_hopper_candidate(192_128_t2x64 "192, 128, 2, 64, 3, 3" "false, false")
onchip_hopper_candidate(256_t_turns "256, 256, 2, 64, 2, 2" "false, true")

# Instances with marks of the time, for onchip_timeline; onchip_tune leaves them out.
foreach(dim IN ITEMS 64 128 256)
  onchip_kernel(sm90_fwd_bfloat16_d${dim}_timeline SOURCE sm90/fwd_timeline.cuh
    FUNCTION sm90::forward_kernel
    TRAITS "sm90::Timed<sm90::Forward<__nv_bfloat16, ${onchip_hopper_d${dim}}>>"
    SHARED Traits::kSharedBytes SPILLS 2000)
endforeach()
