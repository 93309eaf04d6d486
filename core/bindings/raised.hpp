// What Python code of a user raised, in words that can travel: UTF-8, of bounded length, whatever the exception does when it is asked.
#pragma once

#include <string>

#include "bindings/bindings.hpp"

namespace teal {

// str(object). What is not UTF-8 in it is escaped; an object that cannot say what it is, is said to be so.
std::string text_of(nb::handle object, Py_ssize_t most = 4'000);  // characters: it goes into logs and datagrams

// repr(object), cut short.
std::string shown(nb::handle object);

// "ValueError: it is too small", or "ValueError" where it says nothing.
std::string text_of(const nb::python_error& error);

// The same in one line, the last, behind one for each of the last calls that led there: file, line, function.
std::string text_with_calls(const nb::python_error& error);

}  // namespace teal
