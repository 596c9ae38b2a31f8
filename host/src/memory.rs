//! How the process takes memory from the machine.

/// Makes all threads share one heap; to be called before there are others.
///
/// glibc gives each thread a heap of its own, and what was let go in one cannot be used in another: a look's reply is read
/// by whichever thread is free, so each look would take its memory anew. Other C libraries have one heap as it is.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) sets a number, and there is no other thread yet.
    unsafe {
        // If it is refused, more memory is taken, and that is all.
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
