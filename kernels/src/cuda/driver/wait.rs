//! How the host waits for a GPU: it polls, so that each wait can be ended.
//!
//! `cuStreamSynchronize` and `cuEventSynchronize` would not return while a kernel of NCCL waits for a rank that is gone.

use crate::cuda::error::DeviceError;
use std::time::Duration;

/// Polls without a pause: some tens of microseconds, enough for short work.
const EAGER: u32 = 64;
/// The first pause, which doubles up to the longest one.
const PAUSE: Duration = Duration::from_micros(10);
const LONGEST_PAUSE: Duration = Duration::from_micros(640);

/// Polls `is_over` until it is true, and calls `check` before each pause.
///
/// # Errors
/// The first error of either.
pub(super) fn poll(
    mut is_over: impl FnMut() -> Result<bool, DeviceError>,
    mut check: impl FnMut() -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    for _ in 0..EAGER {
        if is_over()? {
            return Ok(());
        }
        std::hint::spin_loop();
    }
    let mut pause = PAUSE;
    while !is_over()? {
        check()?;
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_what_is_awaited_or_with_the_first_error() {
        // Over when it is asked the hundredth time, long after the eager questions.
        let (mut asked, mut checked) = (0, 0);
        let over = poll(
            || {
                asked += 1;
                Ok(asked == 100)
            },
            || {
                checked += 1;
                Ok(())
            },
        );
        assert_eq!((over, asked, checked), (Ok(()), 100, 100 - EAGER as i32 - 1));
        let mut left = 3;
        let stopped = poll(
            || Ok(false),
            || {
                left -= 1;
                if left == 0 { Err(DeviceError::Stopped) } else { Ok(()) }
            },
        );
        assert_eq!((stopped, left), (Err(DeviceError::Stopped), 0));
        let fails = || Err(DeviceError::Communicator("gone".into()));
        assert_eq!(poll(fails, || Ok(())), Err(DeviceError::Communicator("gone".into())));
    }
}
