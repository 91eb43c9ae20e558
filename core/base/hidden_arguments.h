// The system shows the command line of a program to all users (ps, /proc). The query of an address may be a
// signature.
#pragma once

namespace stfs {

/// Overwrites the queries of addresses in the arguments. Call it after the arguments have been copied.
void hide_queries(int argc, char** argv);

}  // namespace stfs
