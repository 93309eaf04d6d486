#include "base/error.hpp"

#include <cstring>

namespace teal {

std::string system_message(const char* what, int error_number) {
    return std::string(what) + ": " + ::strerror(error_number) + " (errno " + std::to_string(error_number) + ")";
}

}  // namespace teal
