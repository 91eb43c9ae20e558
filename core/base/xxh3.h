// XXH3 with the widest instructions of the processor, if the library can choose them at run time. For callers
// that hash many bytes: three times as fast for bytes in the processor's cache.
#pragma once

#include <xxhash.h>

#ifdef STFS_HAVE_XXH_DISPATCH
#include <xxh_x86dispatch.h>  // redirects the functions of xxhash.h
#endif
