# Writes the source that names the commit of a build, for `--version`:
#   cmake -D SOURCE=CHECKOUT -D FILE=COMMIT.cc -P packaging/commit.cmake
# Each build runs this. The file is written only if the commit or the state of the checkout is another one, so that an
# unchanged checkout compiles and links nothing.
set(commit "")
find_program(GIT git)
# A checkout has .git itself. Sources that are unpacked below another project's checkout are not a part of it.
if(GIT AND EXISTS "${SOURCE}/.git")
  # The checkout may belong to another user. GIT_OPTIONAL_LOCKS: another program may commit at the same time.
  set(git ${CMAKE_COMMAND} -E env GIT_OPTIONAL_LOCKS=0 ${GIT} -c "safe.directory=*")
  execute_process(COMMAND ${git} rev-parse --short=8 HEAD WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE commit
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    set(commit "")
  else()
    # Changes of tests and pages make no other program.
    execute_process(COMMAND ${git} status --porcelain -- CMakeLists.txt core fs tools packaging
      WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      string(APPEND commit ", changed")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT "${FILE}" @ONLY CONTENT [[
#include "core/base/version.h"

namespace stfs {

std::string_view build_commit() {
  return "@commit@";
}

}  // namespace stfs
]])
