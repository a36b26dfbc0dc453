#pragma once

// The only file that knows which version of Catch2 is installed (2 has one header).
#include <catch2/catch.hpp>
