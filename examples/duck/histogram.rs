//! How often each byte occurs in the input buffer: 256 uint64. In Rust, without std; every core counts its own part.
//!
//!     teal duck cc histogram.rs -o histogram.elf -O 3
//!     teal duck run histogram.elf --ib some.bin --cores 2 < /dev/null > counts.bin
//!
//! The crate `duck` is what duck.h is for C; `teal duck cc` brings it.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering};
use duck::Duck;

static COUNTS: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

#[no_mangle]
pub extern "C" fn duck_call(duck: &Duck, _args: *const u8, _bytes: u64, core: u32) -> i64 {
    if core == 0 {
        COUNTS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
    duck.barrier();
    let input = duck.input();
    let (cores, core) = (duck.cores as usize, core as usize);
    let mut mine = [0u64; 256];
    for &byte in &input[input.len() * core / cores..input.len() * (core + 1) / cores] {
        mine[byte as usize] += 1;
    }
    for (all, own) in COUNTS.iter().zip(mine) {
        all.fetch_add(own, Ordering::Relaxed);
    }
    duck.barrier();
    if core == 0 {
        let output = unsafe { duck.output() };
        let Some(output) = output.get_mut(..256 * 8) else {
            return -1; // no room
        };
        for (place, count) in output.chunks_exact_mut(8).zip(&COUNTS) {
            place.copy_from_slice(&count.load(Ordering::Relaxed).to_le_bytes());
        }
    }
    256 * 8
}
