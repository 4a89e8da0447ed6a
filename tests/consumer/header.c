/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled as strict C11: the C header needs nothing before it. */
#include "onchip/onchip.h"

extern int onchip_header_is_c11;
int onchip_header_is_c11 = 1;
