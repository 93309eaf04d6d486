// Reads and writes what a link is asked to be; see link.hpp for the theory of operation.
#include "link/link.hpp"

#include <array>
#include <charconv>
#include <cstddef>
#include <optional>

#include "base/error.hpp"

namespace teal {
namespace {

constexpr std::uint32_t longest_ns = 1'000'000'000;
constexpr std::array<std::string_view, 3> kinds{"shm", "pcie", "cxl"};
constexpr std::array<std::string_view, 4> levels{"load", "poll", "nap", "sleep"};

struct Figure {
    std::string_view name;
    std::uint32_t LinkFigures::* member;
};
constexpr Figure known_figures[] = {
    {"read", &LinkFigures::read},           {"write", &LinkFigures::write},
    {"line", &LinkFigures::line},           {"flush", &LinkFigures::flush},
    {"one_way", &LinkFigures::one_way},     {"kick_send", &LinkFigures::kick_send},
    {"kick_receive", &LinkFigures::kick_receive}, {"kick", &LinkFigures::kick},
    {"dma_setup", &LinkFigures::dma_setup}, {"dma_per_kib", &LinkFigures::dma_per_kib},
};

struct Trick {
    std::string_view name;
    bool LinkTricks::* member;
};
constexpr Trick known_tricks[] = {
    {"write_combining", &LinkTricks::write_combining}, {"prefetch", &LinkTricks::prefetch}, {"batching", &LinkTricks::batching},
    {"pre_staging", &LinkTricks::pre_staging}, {"coalescing", &LinkTricks::coalescing}, {"dma", &LinkTricks::dma},
};

[[noreturn]] void refuse(std::string_view what, const std::string& why) {
    throw Error(Code::invalid_argument, "link: " + std::string(what) + ": " + why);
}

std::uint32_t number(std::string_view setting, std::string_view digits, std::uint64_t factor, std::uint64_t most) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value > most / factor)
        refuse(setting, "expected a whole number, at most " + std::to_string(most) + (factor > 1 || most == longest_ns ? " ns" : ""));
    return static_cast<std::uint32_t>(value * factor);
}

// "750ns", "1600", "2us".
std::uint32_t duration(std::string_view setting, std::string_view value) {
    std::uint64_t factor = 1;
    for (const auto& [unit, ns] : {std::pair<std::string_view, std::uint64_t>{"ns", 1}, {"us", 1000}, {"ms", 1'000'000}})
        if (value.ends_with(unit)) {
            factor = ns;
            value.remove_suffix(unit.size());
            break;
        }
    return number(setting, value, factor, longest_ns);
}

std::optional<bool> flag(std::string_view value) noexcept {
    if (value == "on" || value == "1") return true;
    if (value == "off" || value == "0") return false;
    return std::nullopt;
}

void set_all(LinkTricks& all, bool on) {
    for (const Trick& trick : known_tricks) all.*trick.member = on;
}

// Rounded up: never shorter than asked.
std::uint64_t ticks_of(std::uint32_t ns) noexcept { return ns == 0 ? 0 : ns_to_ticks(ns) + 1; }

std::string known_settings() {
    std::string text = "tricks, polling, coalesce";
    for (const Trick& trick : known_tricks) text += ", " + std::string(trick.name);
    for (const Figure& figure : known_figures) text += ", " + std::string(figure.name);
    return text;
}

// Returns true when it was one_way: it follows `read` else.
bool apply(LinkSpec& spec, std::string_view name, std::string_view value) {
    const std::string setting = std::string(name) + "=" + std::string(value);
    for (const Figure& figure : known_figures)
        if (figure.name == name) {
            spec.figures.*figure.member = duration(setting, value);
            return name == "one_way";
        }
    if (name == "coalesce") {
        spec.tricks.coalesce = number(setting, value, 1, 64);
        if (spec.tricks.coalesce == 0) refuse(setting, "expected 1 to 64");
        return false;
    }
    if (name == "polling") {
        for (std::size_t i = 0; i < levels.size(); ++i)
            if (levels[i] == value) {
                spec.tricks.polling = static_cast<Polling>(i);
                return false;
            }
        refuse(setting, "expected load, poll, nap or sleep");
    }
    const std::optional<bool> on = flag(value);
    if (name == "tricks") {
        if (!on) refuse(setting, "expected on or off");
        set_all(spec.tricks, *on);
        return false;
    }
    for (const Trick& trick : known_tricks)
        if (trick.name == name) {
            if (!on) refuse(setting, "expected on or off");
            spec.tricks.*trick.member = *on;
            return false;
        }
    refuse(setting, "no such setting; there are " + known_settings());
}

}  // namespace

std::string_view link_kind_name(LinkKind kind) noexcept { return kinds[static_cast<std::size_t>(kind)]; }
std::string_view polling_name(Polling polling) noexcept { return levels[static_cast<std::size_t>(polling)]; }

// pcie: an uncached 8-byte load and store, MSI-X, as Wave's authors are remembered to state them; the rest follows: a combined line is one
// store on the bus, a fence after it another, a load is there and back. DMA: a descriptor and a doorbell, then 16 GB/s.
// cxl: a line of the device's coherent memory. A store is posted into the cache hierarchy and pulled from there.
LinkSpec LinkSpec::of(LinkKind kind) noexcept {
    LinkSpec spec;
    spec.kind = kind;
    LinkFigures& f = spec.figures;
    if (kind == LinkKind::shm) return spec;
    f.kick_send = 70;
    f.kick_receive = 350;
    f.kick = 1600;
    f.dma_setup = 400;
    f.dma_per_kib = 64;
    if (kind == LinkKind::pcie) {
        f.read = 750;
        f.write = f.line = f.flush = 50;
        f.one_way = 375;
    } else {
        f.read = 300;
        f.write = f.line = 20;
        f.one_way = 150;
    }
    return spec;
}

LinkSpec LinkSpec::parse(std::string_view text) {
    const std::size_t colon = text.find(':');
    const std::string_view kind = text.substr(0, colon);
    LinkSpec spec;
    std::size_t found = 0;
    while (found < kinds.size() && kinds[found] != kind) ++found;
    if (found == kinds.size()) refuse("'" + std::string(kind) + "'", "expected shm, pcie or cxl, then settings: pcie:read=900ns,prefetch=off");
    spec = of(static_cast<LinkKind>(found));
    bool one_way_given = false;
    std::string_view rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
    while (!rest.empty()) {
        const std::size_t comma = rest.find(',');
        const std::string_view setting = rest.substr(0, comma);
        rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
        const std::size_t equals = setting.find('=');
        if (equals == std::string_view::npos) refuse("'" + std::string(setting) + "'", "expected NAME=VALUE");
        if (apply(spec, setting.substr(0, equals), setting.substr(equals + 1))) one_way_given = true;
    }
    if (!one_way_given) spec.figures.one_way = spec.figures.read / 2;
    if (spec.figures.kick < spec.figures.kick_send + spec.figures.kick_receive)
        refuse("kick=" + std::to_string(spec.figures.kick) + "ns", "shorter than kick_send and kick_receive, which are parts of it");
    return spec;
}

std::string LinkSpec::text() const {
    const LinkSpec usual = of(kind);
    std::string settings;
    const auto add = [&settings](std::string_view name, std::string_view value) {
        settings.append(settings.empty() ? ":" : ",").append(name).append("=").append(value);
    };
    for (const Figure& figure : known_figures)
        if (figures.*figure.member != usual.figures.*figure.member) add(figure.name, std::to_string(figures.*figure.member) + "ns");
    // As often as not it is what `read` would make it; said all the same where `read` was.
    if (figures.read != usual.figures.read && figures.one_way == usual.figures.one_way) add("one_way", std::to_string(figures.one_way) + "ns");
    for (const Trick& trick : known_tricks)
        if (!(tricks.*trick.member)) add(trick.name, "off");
    if (tricks.polling != usual.tricks.polling) add("polling", polling_name(tricks.polling));
    if (tricks.coalesce != usual.tricks.coalesce) add("coalesce", std::to_string(tricks.coalesce));
    return std::string(link_kind_name(kind)) + settings;
}

bool LinkSpec::is_plain_shm() const { return text() == "shm"; }

Link::Link(const LinkSpec& spec, Clock clock)
    : spec_(spec), clock_(clock), read_(ticks_of(spec.figures.read)), write_(ticks_of(spec.figures.write)), line_(ticks_of(spec.figures.line)),
      flush_(ticks_of(spec.figures.flush)), one_way_(ticks_of(spec.figures.one_way)), kick_send_(ticks_of(spec.figures.kick_send)),
      kick_receive_(ticks_of(spec.figures.kick_receive)), kick_(ticks_of(spec.figures.kick)), dma_setup_(ticks_of(spec.figures.dma_setup)),
      dma_per_kib_(ticks_of(spec.figures.dma_per_kib)) {}

std::unique_ptr<Link> make_link(const LinkSpec& spec, Link::Clock clock) {
    return spec.is_plain_shm() ? nullptr : std::make_unique<Link>(spec, clock);
}

}  // namespace teal
