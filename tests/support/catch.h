// Catch2 under one name: version 3 (Debian 13, Ubuntu 24.04) and version 2 (Debian 12, Ubuntu 22.04).
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
