// SPDX-License-Identifier: Apache-2.0
// Replaces operator new of the test program by one that counts; apart from its callers, because
// compilers that inline one of a pair of new and delete warn about the other.
#include "allocations.hpp"

#include <cstdlib>
#include <new>

namespace {
thread_local std::int64_t count = 0;
}

std::int64_t allocations() { return count; }

void* operator new(std::size_t size) {
  ++count;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
