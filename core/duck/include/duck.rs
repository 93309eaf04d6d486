//! duck: native programs in Rust that stay resident in a duck and are called there (the same as duck.h, in Rust).
//!
//! `teal duck cc prog.rs -o prog.elf` compiles this crate with the program, which needs neither std nor a Cargo.toml:
//!
//! ```ignore
//! #![no_std]
//! #![no_main]
//! use duck::Duck;
//!
//! #[unsafe(no_mangle)]
//! pub extern "C" fn duck_call(duck: &Duck, args: *const u8, bytes: u64, core: u32) -> i64 {
//!     let args = unsafe { duck::bytes(args, bytes) };
//!     let out = unsafe { duck.output() };
//!     out[..args.len()].copy_from_slice(args);
//!     args.len() as i64 // bytes of the answer at the start of the output buffer; negative: failed, with that status
//! }
//! ```
//!
//! `duck_init(&Duck) -> i32` and `duck_exit(&Duck)` are called if the program defines them. A panic ends the program (a trap).
#![no_std]

use core::sync::atomic::{AtomicU32, Ordering};

pub const ABI: u32 = 1;

#[repr(C)]
pub struct BarrierLine {
    arrived: AtomicU32,
    phase: AtomicU32,
    reserved: [u8; 56],
}

#[repr(C)]
pub struct Duck {
    pub abi: u32,
    pub bytes: u32,
    pub cores: u32,
    reserved: u32,
    ib: *const u8,
    ib_bytes: u64,
    ob: *mut u8,
    ob_bytes: u64,
    pub tsc_hz: u64,
    barrier: *const BarrierLine,
    serve: extern "C" fn(&Duck, *const u8) -> i32,
    yield_: extern "C" fn(),
    log: extern "C" fn(&Duck, *const u8, u64),
}

/// The arguments of a call as a slice.
///
/// # Safety
/// `at` and `count` are what duck_call() was given.
pub unsafe fn bytes<'a>(at: *const u8, count: u64) -> &'a [u8] {
    if count == 0 {
        return &[];
    }
    unsafe { core::slice::from_raw_parts(at, count as usize) }
}

impl Duck {
    /// The input buffer, empty while none is mapped.
    pub fn input(&self) -> &[u8] {
        if self.ib_bytes == 0 {
            return &[];
        }
        unsafe { core::slice::from_raw_parts(self.ib, self.ib_bytes as usize) }
    }

    /// The output buffer. Its contents stay from call to call unless the caller asks for zeros.
    ///
    /// # Safety
    /// Cores write different parts of it, and each asks for it once in a call.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn output(&self) -> &mut [u8] {
        if self.ob_bytes == 0 {
            return &mut [];
        }
        unsafe { core::slice::from_raw_parts_mut(self.ob, self.ob_bytes as usize) }
    }

    /// A line for `teal duck log`.
    pub fn log(&self, text: &str) {
        (self.log)(self, text.as_ptr(), text.len() as u64);
    }

    /// Every core waits until all have come here. For use within duck_call(), by all cores the same number of times.
    pub fn barrier(&self) {
        if self.cores < 2 {
            return;
        }
        let line = unsafe { &*self.barrier };
        let phase = line.phase.load(Ordering::Relaxed);
        // SYNC: pairs with itself: who arrives last has seen what the others wrote before they arrived.
        if line.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.cores {
            line.arrived.store(0, Ordering::Relaxed);
            // SYNC: pairs with the acquire below.
            line.phase.store(phase.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut round: u32 = 1;
        while line.phase.load(Ordering::Acquire) == phase {
            core::hint::spin_loop();
            if round & 1023 == 0 {
                (self.yield_)();
            }
            round = round.wrapping_add(1);
        }
    }
}

/// Time stamp counter: the same on all cores, `Duck::tsc_hz` per second.
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    unsafe {
        let value: u64;
        core::arch::asm!("mrs {}, cntvct_el0", out(reg) value);
        value
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("ud2", options(noreturn))
    }
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("brk #1", options(noreturn))
    }
}
