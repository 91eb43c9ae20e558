# What makes an error of memory in our programs and libraries harder to use: position-independent code, checked calls of
# libc, guarded stacks, addresses of functions that are read-only after the start, no code on the stack, marked targets of
# jumps. tests/packaging/test_hardening.py looks for each in the built files. A sanitizer checks more, and its calls
# replace those of libc.
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
# Only compilers for x86 have it.
check_cxx_compiler_flag(-fcf-protection STFS_HAVE_CF_PROTECTION)
if(STFS_HAVE_CF_PROTECTION)
  list(APPEND STFS_HARDENED -fcf-protection)
endif()

# libc says which level it gives. A level needs optimization, so the check has the build type's flags. Whoever builds
# with a level of their own, as distributions do, keeps it.
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
