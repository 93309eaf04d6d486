// The worker's path from one request to the next, kept together in the program: after a long kernel all of it is out of the
// caches, and fetch_path() brings it back at once instead of one miss after the other.
#pragma once

#define TEAL_HOT [[gnu::section("teal_hot")]]

// Where the linker puts it.
extern "C" {
extern const char __start_teal_hot[] __attribute__((visibility("hidden")));
extern const char __stop_teal_hot[] __attribute__((visibility("hidden")));
}
