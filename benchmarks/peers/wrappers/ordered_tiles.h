/* Included before every source of llama.cpp. The AMX intrinsics of GCC before 14 do not say that they read memory, so the compiler
   drops stores to what they load, and llama.cpp crashes
   on a processor with AMX. A barrier before each of them keeps the stores. */
#pragma once
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#define KVARN_MEMORY_BARRIER __asm__ volatile("" ::: "memory")

#define _tile_loadconfig(config) \
  __extension__({ KVARN_MEMORY_BARRIER; _tile_loadconfig(config); })
#undef _tile_loadd
#define _tile_loadd(tile, base, stride) \
  __extension__({ KVARN_MEMORY_BARRIER; _tile_loadd_internal(tile, base, stride); })
#undef _tile_stream_loadd
#define _tile_stream_loadd(tile, base, stride) \
  __extension__({ KVARN_MEMORY_BARRIER; _tile_stream_loadd_internal(tile, base, stride); })
#endif
