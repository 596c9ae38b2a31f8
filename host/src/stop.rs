//! The wish that the process end: no new act, and no longer wait.

use tokio::sync::watch;

/// Asks for the end; kept by whoever listens for signals.
#[derive(Debug)]
pub struct StopSwitch(watch::Sender<bool>);

/// Hears of it; cheap to clone.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

/// A switch and what it stops.
#[must_use]
pub fn stop() -> (StopSwitch, Stop) {
    let (sender, receiver) = watch::channel(false);
    (StopSwitch(sender), Stop(receiver))
}

impl StopSwitch {
    /// Asks for the end.
    pub fn request(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Whether the end was asked for.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when the end is asked for; never, if the switch is gone.
    pub async fn requested(&self) {
        let mut receiver = self.0.clone();
        if receiver.wait_for(|is_requested| *is_requested).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
