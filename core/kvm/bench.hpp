// A bench: a guest with a program's memory in it, on which the program is run from zero again and again.
//
// Theory of operation. Setting up a guest costs a millisecond, restoring one costs what the last run wrote: every page that was written
// gets its first bytes back (the image's, or zeros), every other page still has them. The state of the CPU is set anew as a whole. Nothing
// of a run can be left: what ring 3 can write is guest memory, and the guest's own page tables, which ring 3 cannot reach, say which of it
// was written. An image is told by its steps; which bytes it has is compared page by page, unless the caller says by a number that they are
// those of the last run. Buffers (stdin and others of a DuckInfo program) are mapped where the last run's were, by replacing our own
// mapping underneath.
#pragma once

#if defined(__x86_64__)

#include <cstdint>
#include <memory>
#include <vector>

#include "box/judge.hpp"
#include "kvm/guest.hpp"

namespace teal::kvm {

struct BenchStatistics {
    std::uint64_t guests_made = 0;
    std::uint64_t pages_restored = 0;   // written by a run, first bytes put back
    std::uint64_t pages_copied = 0;     // of an image that differs from the one before
    std::uint64_t prepare_ns = 0, restore_ns = 0;   // of the last run
};

struct Count {
    std::uint64_t written = 0, touched = 0;   // pages
};

class Bench {
public:
    Bench() = default;
    ~Bench();
    Bench(const Bench&) = delete;
    Bench& operator=(const Bench&) = delete;

    // Everything as at the start of the program. `image_id` other than 0 and the same as before: the same bytes. Throws.
    void prepare(const box::RunOrder& order, std::uint64_t image_id);
    // After a run: what was touched, what an order does not count left out; and all of it restored. The page at `report` as the run left it, 0: none.
    Count finish(std::uint64_t report, std::vector<std::byte>& page);

    [[nodiscard]] Guest& guest() noexcept { return *guest_; }
    [[nodiscard]] Start start() const noexcept { return start_; }
    [[nodiscard]] std::uint64_t heap() const noexcept { return heap_; }
    [[nodiscard]] std::uint64_t heap_bytes() const noexcept { return heap_bytes_; }
    [[nodiscard]] const BenchStatistics& statistics() const noexcept { return statistics_; }

private:
    struct Piece {                       // memory that is restored
        Area* area;
        std::uint64_t offset;            // of its first bytes in the image
        bool image;
        const std::byte* first = nullptr;   // a mapping of them; null: zeros
    };

    [[nodiscard]] bool fits(const box::RunOrder& order) const noexcept;
    void build(const box::RunOrder& order);
    void plan_heap(const box::RunOrder& order);
    void add_piece(std::uint64_t virt, std::uint64_t bytes, Access access, bool image = false, std::uint64_t offset = 0);
    void load_image(int fd);
    void map_buffers(const box::RunOrder& order);
    void write_stack(const box::RunOrder& order);
    void restore(Piece& piece, Count& count);
    void clear_stack();
    void clear() noexcept;

    box::RunOrder order_;                // what the guest was built for
    std::uint64_t image_id_ = 0;
    std::unique_ptr<Guest> guest_;
    std::vector<Piece> pieces_;
    std::vector<Area*> buffers_;         // shared with whoever ordered the run
    std::uint64_t heap_ = 0, heap_bytes_ = 0, stack_low_ = 0, stack_end_ = 0, stack_written_ = 0;
    Start start_;
    BenchStatistics statistics_;
};

}  // namespace teal::kvm

#endif
