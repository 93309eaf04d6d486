#include "bindings/raised.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace teal {
namespace {

constexpr std::size_t most_calls = 24;  // the last of them: a recursion has a thousand

std::string taken(PyObject* text, Py_ssize_t most) {
    PyObject* const part = text == nullptr ? nullptr : PyUnicode_Substring(text, 0, most);
    PyObject* const bytes = part == nullptr ? nullptr : PyUnicode_AsEncodedString(part, "utf-8", "backslashreplace");
    Py_XDECREF(part);
    Py_XDECREF(text);
    if (bytes == nullptr) {
        PyErr_Clear();
        return "(its text cannot be made)";
    }
    std::string result(PyBytes_AS_STRING(bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes)));
    Py_DECREF(bytes);
    return result;
}

}  // namespace

std::string text_of(nb::handle object, Py_ssize_t most) { return taken(PyObject_Str(object.ptr()), most); }

std::string shown(nb::handle object) { return taken(PyObject_Repr(object.ptr()), 200); }

std::string text_of(const nb::python_error& error) {
    const std::string text = text_of(error.value());
    return text_of(error.type().attr("__name__")) + (text.empty() ? "" : ": " + text);
}

std::string text_with_calls(const nb::python_error& error) {
    std::string all;
    try {
        std::vector<nb::object> calls;
        for (nb::object at = nb::borrow(error.traceback()); at.is_valid() && !at.is_none(); at = at.attr("tb_next")) calls.push_back(at);
        for (std::size_t i = calls.size() > most_calls ? calls.size() - most_calls : 0; i < calls.size(); ++i) {
            const nb::object code = calls[i].attr("tb_frame").attr("f_code");
            all += "File \"" + text_of(code.attr("co_filename")) + "\", line " + text_of(calls[i].attr("tb_lineno"));
            all += ", in " + text_of(code.attr("co_name")) + "\n";
        }
    } catch (const nb::python_error&) {  // no memory for it
    }
    std::string text = text_of(error);
    std::replace(text.begin(), text.end(), '\n', ' ');
    return all + text;
}

}  // namespace teal
