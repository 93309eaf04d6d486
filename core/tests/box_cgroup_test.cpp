// Groups around boxes: what is written where, on a folder that stands for a delegated group; and a real one, where this machine offers it.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include "box/cgroup.hpp"
#include "check.hpp"
#include "made_yard.hpp"

using namespace teal;
using namespace teal::box;
using namespace teal::box::test;

namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t second = 1'000'000'000;

std::string read(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

struct Folder {
    Folder() {
        char name[] = "/tmp/teal-cgroup-XXXXXX";
        path = ::mkdtemp(name);
    }
    ~Folder() { fs::remove_all(path); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    fs::path path;
};

void writes_what_it_should() {
    const Folder folder;
    const fs::path root = folder.path / "cg", mine = root / "user" / "duck";
    fs::create_directories(mine);
    write(mine / "cgroup.controllers", "cpuset cpu io memory pids\n");
    fs::create_directory(mine / "teal-999999999-0");   // of a yard that is gone
    write(folder.path / "own", "9:name=systemd:/\n0::/user/duck\n");
    write(folder.path / "mounts", "proc /proc proc rw 0 0\ncgroup2 " + root.string() + " cgroup2 rw 0 0\n");
    const CgroupHome home((folder.path / "own").string(), (folder.path / "mounts").string());
    CHECK(home.usable());
    CHECK_EQ(read(mine / "cgroup.subtree_control"), std::string("+memory +pids +cpu"));
    CHECK(!fs::exists(mine / "teal-999999999-0"));
    const Cgroup group = home.hold(4711);
    CHECK_EQ(group.path(), home.path() + "/box-4711");
    CHECK_EQ(read(group.path() + "/cgroup.procs"), std::string("4711"));
    group.limit({1 << 20, 3, 2});
    CHECK_EQ(read(group.path() + "/memory.max"), std::string("1048576"));
    CHECK_EQ(read(group.path() + "/memory.swap.max"), std::string("0"));
    CHECK_EQ(read(group.path() + "/pids.max"), std::string("3"));
    CHECK_EQ(read(group.path() + "/cpu.max"), std::string("200000 100000"));
    CHECK(!group.ran_out_of_memory());
    write(fs::path(group.path()) / "memory.events", "low 0\noom 1\noom_kill 1\n");
    CHECK(group.ran_out_of_memory());
    CHECK_EQ(home.hold(0).path(), std::string());
}

void does_without() {
    const Folder folder;
    write(folder.path / "own", "0::/duck\n");
    write(folder.path / "none", "proc /proc proc rw 0 0\n");
    const CgroupHome none((folder.path / "own").string(), (folder.path / "none").string());
    CHECK(!none.usable());
    CHECK(none.why().find("mounted") != std::string::npos);
    fs::create_directories(folder.path / "cg" / "duck");
    write(folder.path / "cg" / "duck" / "cgroup.controllers", "io rdma\n");
    write(folder.path / "mounts", "cgroup2 " + (folder.path / "cg").string() + " cgroup2 rw 0 0\n");
    const CgroupHome bare((folder.path / "own").string(), (folder.path / "mounts").string());
    CHECK(!bare.usable());
    CHECK(bare.why().find("offers none of memory, pids and cpu") != std::string::npos);
    CHECK_EQ(bare.hold(1).path(), std::string());
    bare.hold(1).limit({1, 1, 1});
}

// The one above takes the controllers, the own one has processes and does not: here as one that cannot be written.
void takes_the_one_above() {
    if (::geteuid() == 0) return;   // root writes everywhere
    const Folder folder;
    const fs::path above = folder.path / "cg" / "slice", mine = above / "duck";
    fs::create_directories(mine);
    for (const fs::path& each : {above, mine}) write(each / "cgroup.controllers", "memory\n");
    write(mine / "cgroup.subtree_control", "");
    fs::permissions(mine / "cgroup.subtree_control", fs::perms::owner_read);
    write(folder.path / "own", "0::/slice/duck\n");
    write(folder.path / "mounts", "cgroup2 " + (folder.path / "cg").string() + " cgroup2 rw 0 0\n");
    const CgroupHome home((folder.path / "own").string(), (folder.path / "mounts").string());
    CHECK(home.usable());
    CHECK_EQ(fs::path(home.path()).parent_path(), above);
}

void bounds_a_real_box() {
    const CgroupHome probe;
    if (!probe.usable()) {
        std::printf("groups of real boxes: not tried: %s\n", probe.why().c_str());
        return;
    }
    Yard yard(yard_options());
    const Loaded actor = load_resident("box_actor");
    SessionOrder order = order_of(actor);
    order.memory_bytes = std::uint64_t{1} << 40;   // its own limit is out of the way
    Opened opened = open(yard, order);
    CHECK(answers(opened));
    opened.session->close(5 * second);
    CHECK_EQ(opened.session->ending().fate, Fate::closed);
}

}  // namespace

int main() {
    writes_what_it_should();
    does_without();
    takes_the_one_above();
    bounds_a_real_box();
    return check::summary();
}
