// Settings of policies: values as people write them, and values for models or sessions by name.
//
// Theory of operation. A policy is set up from words ("quantum=50us", "slo.bert=1ms") before anybody knows which index the model "bert" has,
// or whether there will be one. So PerName keeps what was said by name, is told names as they become known (Policy::on_name), and
// answers by index: a load from a vector. What nobody has named is called "#INDEX".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agents/policy.hpp"

namespace teal {

// "50us", "2ms", "1.5s", "300ns". Throws Error(invalid_argument) for anything else, for more than a day and for less than `least`.
std::uint64_t parse_time(std::string_view setting, std::string_view value, std::uint64_t least = 0);
// "3", "0.5": in thousandths, 1 to 10^9.
std::uint64_t parse_weight(std::string_view setting, std::string_view value);
std::int64_t parse_whole(std::string_view setting, std::string_view value, std::int64_t least, std::int64_t most);
bool parse_flag(std::string_view setting, std::string_view value);          // 1, 0, yes, no, on, off
Named parse_named(std::string_view setting, std::string_view value);        // model, session
std::string show_time(std::uint64_t ns);                                    // "50us"; parse_time() reads it back
std::string show_weight(std::uint64_t thousandths);                         // "0.5"
inline std::string_view show_named(Named named) { return named == Named::model ? "model" : "session"; }

// "slo.bert" is ("slo", "bert"); no dot: the second is empty.
std::pair<std::string_view, std::string_view> split_setting(std::string_view name) noexcept;

template <class T>
class PerName {
public:
    explicit PerName(T usual) : usual_(usual) {}

    void set_usual(T value) {
        usual_ = value;
        for (std::size_t i = 0; i < values_.size(); ++i) resolve(static_cast<std::uint16_t>(i));
    }
    void set(std::string_view name, T value) {
        bool known = false;
        for (auto& [said, kept] : said_) {
            if (said != name) continue;
            kept = value;
            known = true;
        }
        if (!known) said_.emplace_back(name, value);
        for (std::size_t i = 0; i < values_.size(); ++i) resolve(static_cast<std::uint16_t>(i));
    }
    void name(std::uint16_t index, std::string_view name) {
        reach(index);
        names_[index] = name;
        resolve(index);
    }

    T operator[](std::uint16_t index) {
        if (index >= values_.size()) [[unlikely]] reach(index);
        return values_[index];
    }
    T usual() const { return usual_; }
    const std::vector<std::pair<std::string, T>>& said() const { return said_; }
    std::string name_of(std::uint16_t index) const {
        return index < names_.size() && !names_[index].empty() ? names_[index] : "#" + std::to_string(index);
    }

private:
    void reach(std::uint16_t index) {
        for (std::size_t i = values_.size(); i <= index; ++i) {
            values_.push_back(usual_);
            names_.emplace_back();
            resolve(static_cast<std::uint16_t>(i));
        }
    }
    void resolve(std::uint16_t index) {
        values_[index] = usual_;
        const std::string number = "#" + std::to_string(index);
        for (const auto& [said, kept] : said_)
            if (said == names_[index] || said == number) values_[index] = kept;
    }

    T usual_;
    std::vector<std::pair<std::string, T>> said_;
    std::vector<T> values_;
    std::vector<std::string> names_;
};

}  // namespace teal
