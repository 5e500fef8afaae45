#pragma once
#include <cstdint>
#include <string>
#include <vector>
namespace torch { namespace unwind { struct Frame { std::string filename, funcname; uint64_t lineno; }; } }
