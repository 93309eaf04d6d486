/* FNV-1a, 64 bits, of the arguments; of the input buffer when there are none. With several cores each hashes its part of the input buffer
 * (in chunks of 1 MiB), and the answer is the hash of the chunks' hashes: the same for any number of cores.
 *
 *     teal duck cc hash.c -o hash.elf
 *     printf hello | teal duck run hash.elf | xxd -p                                     # 0bbdaa8046d830a4
 *     teal duck run hash.elf --ib weights.bin --cores 2 < /dev/null | xxd -p
 */
#include <duck.h>

enum { chunk_bytes = 1 << 20, most_chunks = 65536 };
static uint64_t chunk_hash[most_chunks];

static uint64_t fnv1a(const uint8_t *bytes, uint64_t count) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < count; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    if (duck->ob_bytes < 8) return -1;
    if (bytes > 0) {
        if (core == 0) *(uint64_t *)duck->ob = fnv1a(args, bytes);
        return 8;
    }
    const uint64_t chunks = (duck->ib_bytes + chunk_bytes - 1) / chunk_bytes;
    if (chunks > most_chunks) return -2;
    for (uint64_t i = core; i < chunks; i += duck->cores) {
        const uint64_t at = i * chunk_bytes, left = duck->ib_bytes - at;
        chunk_hash[i] = fnv1a((const uint8_t *)duck->ib + at, left < chunk_bytes ? left : chunk_bytes);
    }
    duck_barrier(duck);
    if (core == 0) *(uint64_t *)duck->ob = fnv1a((const uint8_t *)chunk_hash, chunks * 8);
    return 8;
}
