# Makes memory errors in our programs and libraries harder to exploit: position-independent code, checked calls of libc,
# guarded stacks, addresses of functions that are read-only after the start, no code on the stack, marked targets of jumps.
# tests/packaging/test_hardening.py checks the built files for each. A sanitizer checks more, and its functions replace the
# checked calls of libc.
include(CheckCXXSourceCompiles)
include(CheckCXXCompilerFlag)
include(CheckPIESupported)

check_pie_supported(LANGUAGES CXX)
set(STFS_HARDENED "")  # core, fs, tools and packaging/python add it. The tests need no hardening, only time.
if(STFS_SANITIZE)
  return()
endif()
add_link_options("$<$<LINK_LANGUAGE:CXX>:-Wl,-z,relro,-z,now,-z,noexecstack>")

list(APPEND STFS_HARDENED -fstack-protector-strong)
# Only compilers for x86 have this option.
check_cxx_compiler_flag(-fcf-protection STFS_HAVE_CF_PROTECTION)
if(STFS_HAVE_CF_PROTECTION)
  list(APPEND STFS_HARDENED -fcf-protection)
endif()

# The check finds the level that libc supports. A level needs optimization, so the check uses the build type's flags. If the
# flags already set a level, as in builds of distributions, this level stays.
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
set(all_flags "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}}")
if(NOT all_flags MATCHES "_FORTIFY_SOURCE")
  foreach(level 3 2)
    set(CMAKE_REQUIRED_FLAGS "${all_flags} -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${level}")
    check_cxx_source_compiles("
      #include <cstdio>
      #if __USE_FORTIFY_LEVEL < ${level}
      #error
      #endif
      int main() {}" STFS_HAVE_FORTIFY_${level})
    unset(CMAKE_REQUIRED_FLAGS)
    if(STFS_HAVE_FORTIFY_${level})
      # Some compilers define a level by themselves.
      list(APPEND STFS_HARDENED -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${level})
      break()
    endif()
  endforeach()
endif()
list(TRANSFORM STFS_HARDENED REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")
