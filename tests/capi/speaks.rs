// speaks.rs ADDRESS: the C ABI from Rust.
use std::ffi::{c_char, c_uint, c_void, CStr, CString};

#[repr(C)]
#[derive(Clone, Copy)]
struct Tensor {
    data: *mut c_void,
    dtype: i32,
    ndim: i32,
    shape: [i64; 8],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Handle {
    id: u64,
}

extern "C" {
    fn laika_init(address: *const c_char, flags: c_uint) -> i32;
    fn laika_finalize() -> i32;
    fn laika_model_load(source: *const c_char, flags: c_uint, model: *mut Handle) -> i32;
    fn laika_infer(model: Handle, inputs: *const Tensor, n_in: usize, outputs: *mut Tensor, n_out: usize) -> i32;
    fn laika_last_error() -> *const c_char;
}

fn need(status: i32) {
    if status != 0 {
        let said = unsafe { CStr::from_ptr(laika_last_error()) };
        panic!("{} {}", status, said.to_string_lossy());
    }
}

fn main() {
    let address = CString::new(std::env::args().nth(1).unwrap()).unwrap();
    let source = CString::new("builtin:sum").unwrap();
    let mut x = vec![0.25f32; 400];
    let mut total = 0f64;
    let mut model = Handle::default();
    let input = Tensor { data: x.as_mut_ptr().cast(), dtype: 11, ndim: 1, shape: [400, 0, 0, 0, 0, 0, 0, 0] };
    let mut output = Tensor { data: (&mut total as *mut f64).cast(), dtype: 12, ndim: 0, shape: [0; 8] };
    unsafe {
        need(laika_init(address.as_ptr(), 0));
        need(laika_model_load(source.as_ptr(), 0, &mut model));
        need(laika_infer(model, &input, 1, &mut output, 1));
        assert_ne!(laika_infer(Handle { id: 12345 }, &input, 1, &mut output, 1), 0);
        need(laika_finalize());
    }
    assert_eq!(total, 100.0);
    println!("1 passed, 0 failed");
}
