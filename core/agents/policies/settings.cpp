#include "agents/policies/settings.hpp"

#include <charconv>

#include "base/error.hpp"

namespace teal {
namespace {

constexpr std::uint64_t day_ns = 86'400ULL * 1'000'000'000;

std::string quoted(std::string_view text) { return "'" + std::string(text.substr(0, 80)) + "'"; }

// A decimal number without sign, exponent or spaces, in units of 1/`scale`; false: it is none, or too large. No floating point, so that
// every machine reads it alike.
bool decimal(std::string_view text, std::uint64_t scale, std::uint64_t& out) {
    constexpr std::uint64_t most = std::uint64_t{1} << 62;
    std::uint64_t number = 0;
    std::size_t i = 0;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
        if (number > most / scale / 10) return false;
        number = number * 10 + static_cast<std::uint64_t>(text[i] - '0');
    }
    if (i == 0) return false;
    number *= scale;
    if (i < text.size()) {
        if (text[i] != '.' || i + 1 == text.size()) return false;
        for (++i; i < text.size(); ++i) {
            if (text[i] < '0' || text[i] > '9') return false;
            scale /= 10;
            number += static_cast<std::uint64_t>(text[i] - '0') * scale;
        }
    }
    out = number;
    return true;
}

}  // namespace

std::uint64_t parse_time(std::string_view setting, std::string_view value, std::uint64_t least) {
    constexpr std::pair<std::string_view, std::uint64_t> units[] = {{"ns", 1}, {"us", 1'000}, {"µs", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}};
    for (const auto& [unit, scale] : units) {
        std::uint64_t ns = 0;
        if (!value.ends_with(unit) || !decimal(value.substr(0, value.size() - unit.size()), scale, ns)) continue;
        if (ns <= day_ns && ns >= least) return ns;
    }
    if (value == "0" && least == 0) return 0;
    throw Error(Code::invalid_argument, std::string(setting) + "=" + quoted(value) + ": expected a time of " + show_time(least) + " to 24 hours, such as 50us, 2ms or 1.5s");
}

std::uint64_t parse_weight(std::string_view setting, std::string_view value) {
    std::uint64_t thousandths = 0;
    if (decimal(value, 1000, thousandths) && thousandths >= 1 && thousandths <= 1'000'000'000) return thousandths;
    throw Error(Code::invalid_argument, std::string(setting) + "=" + quoted(value) + ": expected a weight of 0.001 to 1000000, such as 3 or 0.5");
}

std::int64_t parse_whole(std::string_view setting, std::string_view value, std::int64_t least, std::int64_t most) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error == std::errc{} && end == value.data() + value.size() && number >= least && number <= most) return number;
    throw Error(Code::invalid_argument,
                std::string(setting) + "=" + quoted(value) + ": expected a whole number of " + std::to_string(least) + " to " + std::to_string(most));
}

bool parse_flag(std::string_view setting, std::string_view value) {
    if (value == "1" || value == "yes" || value == "on") return true;
    if (value == "0" || value == "no" || value == "off") return false;
    throw Error(Code::invalid_argument, std::string(setting) + "=" + quoted(value) + ": expected 1 or 0");
}

Named parse_named(std::string_view setting, std::string_view value) {
    if (value == "model") return Named::model;
    if (value == "session") return Named::session;
    throw Error(Code::invalid_argument, std::string(setting) + "=" + quoted(value) + ": expected model or session");
}

std::string show_time(std::uint64_t ns) {
    constexpr std::pair<std::string_view, std::uint64_t> units[] = {{"s", 1'000'000'000}, {"ms", 1'000'000}, {"us", 1'000}};
    if (ns == 0) return "0";
    for (const auto& [unit, scale] : units)
        if (ns % scale == 0) return std::to_string(ns / scale) + std::string(unit);
    return std::to_string(ns) + "ns";
}

std::string show_weight(std::uint64_t thousandths) {
    std::string text = std::to_string(thousandths / 1000);
    if (thousandths % 1000 == 0) return text;
    std::string rest = std::to_string(1000 + thousandths % 1000).substr(1);
    while (rest.back() == '0') rest.pop_back();
    return text + "." + rest;
}

std::pair<std::string_view, std::string_view> split_setting(std::string_view name) noexcept {
    const std::size_t dot = name.find('.');
    if (dot == std::string_view::npos) return {name, {}};
    return {name.substr(0, dot), name.substr(dot + 1)};
}

}  // namespace teal
