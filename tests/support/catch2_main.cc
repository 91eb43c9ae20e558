// The main function that Catch2 2 leaves to the test program.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
