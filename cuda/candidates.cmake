# SPDX-License-Identifier: Apache-2.0
# Hopper tiles that onchip_tune times beside those of instances.cmake: bfloat16, lean. Included where
# ONCHIP_TUNE is on, and never part of what ships. A name is that of the row it competes with and "_t",
# then whatever tells it apart; the rest is as in onchip_hopper_forward.
macro(onchip_hopper_candidate name shape levers)
  foreach(optimistic IN ITEMS true false)
    onchip_kernel(sm90_fwd_bfloat16_d${name} SOURCE sm90/fwd.cuh FUNCTION sm90::forward_kernel
      TRAITS "sm90::Forward<__nv_bfloat16, ${shape}, false, ${optimistic}, ${levers}>"
      SHARED Traits::kSharedBytes SPILLS 2000)
  endforeach()
endmacro()

# Four warpgroups with small blocks for short sequences; two for causal ones.
onchip_hopper_candidate(64_t4x64 "64, 64, 4, 64, 2" "false, false, false")
onchip_hopper_candidate(64_t2x128 "64, 64, 2, 128, 2" "true, false, false")
onchip_hopper_candidate(64_t2x128_turns "64, 64, 2, 128, 2" "true, true, true")
onchip_hopper_candidate(128_t_turns "128, 128, 2, 128, 2" "true, true, true")
onchip_hopper_candidate(128_t_stages3 "128, 128, 2, 128, 3" "true, true, true")
onchip_hopper_candidate(128_t3x80 "128, 128, 3, 80, 2" "false, false, false")
onchip_hopper_candidate(256_t2x64 "256, 256, 2, 64, 2" "false, false, false")
