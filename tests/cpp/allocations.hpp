// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// How often this thread has called operator new.
std::int64_t allocations();
