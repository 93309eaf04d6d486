// What yard, zygote and boxes say to each other over their sockets (AF_UNIX, SOCK_SEQPACKET: one message, one record).
//
// All three are one build: a version that differs is refused, nothing is converted. The yard believes pids and statuses of the zygote, which runs
// none but our code. A box can send nothing once its program runs: its filter has no call for it.
#pragma once

#include <cstdint>

#include "box/control.hpp"
#include "duck/direct_packet.hpp"

namespace teal::box {

inline constexpr std::uint32_t message_magic = 0x584f'4254;   // "TBOX"
inline constexpr std::uint32_t message_version = 2;   // of all that follows; together with elf::Step
inline constexpr std::uint32_t most_steps = 1024;
inline constexpr std::uint32_t most_stack_image = 65536;
inline constexpr std::uint32_t most_buffers = 8;
inline constexpr int box_socket = 3;                          // the one descriptor of a box beside 0, 1, 2,
inline constexpr int direct_socket = 4;                       // and this one, of a session that a client elsewhere calls directly

enum class BoxKind : std::uint32_t { resident = 0, linux_run = 1, duckinfo_run = 2 };
inline constexpr std::uint32_t box_kinds = 3;

// Yard → zygote.
struct SpawnMessage {
    std::uint32_t magic, version;
    BoxKind kind;
    std::uint32_t reserved;
};

enum class ZygoteWord : std::uint32_t { hello = 1, made = 2 /* descriptors: pidfd, socket */, not_made = 3, ended = 4 };

// Zygote → yard.
struct ZygoteMessage {
    std::uint32_t magic, version;
    ZygoteWord word;
    BoxKind kind;
    std::int32_t pid;             // in the zygote's namespace
    std::int32_t status;          // ended: as wait4 gives it; not_made: errno
    std::uint64_t ns;             // made: how long it took
    std::uint64_t user_ns, system_ns, most_kb;   // ended
};

// The first message of a zygote.
struct HelloMessage {
    std::uint32_t magic, version;
    ZygoteWord word;
    std::uint32_t pid;
    std::int32_t user_namespace;      // 0: used; -1: not needed (root); else errno
    std::int32_t other_namespaces;    // 0: used; else errno
    std::int32_t root_directory;      // 0: an empty one; else errno
    std::int32_t landlock;            // ABI version used; negative: -errno
    std::int32_t seccomp;             // 0: offered; else errno
    std::int32_t no_new_privileges;   // 0: set
    std::int32_t own_user;            // 1: each box has a user of its own
    std::int32_t fixed_addresses;     // 1: no address randomisation
    std::int32_t oom;                 // oom_score_adj: 0 set, else errno
    std::int32_t seals;               // 0: boxes can seal packets (libcrypto); ENOSYS: built without, ENOENT: no libcrypto here
    std::int32_t guests;              // 1: boxes are processes that run one guest each, and judge runs themselves (core/kvm)
};

// Yard → box; followed by `steps` elf::Step and `stack_bytes` bytes of initial stack. Descriptors: the image, then for a session its control
// region (and its direct socket), for a run stdin, stdout, stderr, and one for each buffer.
struct BecomeMessage {
    std::uint32_t magic, version;
    BoxKind kind;
    std::uint32_t cores;
    std::uint32_t steps, stack_bytes;
    std::uint32_t narrow, buffers;
    std::uint64_t entry, stack_end, stack_room;
    std::uint64_t tls_address, tls_file_bytes, tls_bytes, tls_align;
    std::uint64_t region_bytes, args_bytes, log_offset, log_bytes, ob_offset, ob_bytes;
    std::uint64_t idle_ns, tsc_hz;
    std::uint64_t data_limit, space_limit, file_limit, cpu_limit_s;
    std::uint64_t direct_id;          // of a session with direct calls: their socket is the third descriptor. 0: none
    std::uint32_t direct_cipher, direct_zero;
    duck::DirectKeys direct_keys;
    std::int32_t pin[most_cores];     // -1: wherever
    struct Buffer {
        std::uint64_t address, bytes, offset;
        std::uint32_t writable, reserved;
    } buffer[most_buffers];
};

// Box → yard, once: it runs from now on, or it could not.
struct BecameMessage {
    std::uint32_t magic;
    std::int32_t status;    // 0, or an errno
    std::uint32_t where;    // BecomeStage
    std::uint32_t index;    // of the step, descriptor, …
    // running: where a run's counting begins, of the box by then
    std::uint64_t cpu_ns, ticks, user_ns, system_ns, voluntary_switches, involuntary_switches, minor_faults, major_faults;
};

enum class BecomeStage : std::uint32_t { running = 0, message, descriptors, limits, region, image, stack, threads, place, gate, keys };

enum class OrderOp : std::uint32_t { map = 1 /* descriptor, if it has not got it */, unmap = 2, forget = 3, close = 4, wake = 5 /* nothing but that: no order, no answer */ };

// Yard → box, while its program runs: `seq` is OrderLine's when it is done.
struct OrderMessage {
    std::uint32_t magic;
    OrderOp op;
    std::uint64_t seq, id, bytes;
};

inline constexpr std::uint32_t most_ibs = 256;   // kept mapped by one box

}  // namespace teal::box
