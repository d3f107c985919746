//! What all handlers share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};

use tokio::sync::Semaphore;

use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::served::Served;
use crate::worker::Job;

/// The server as handlers see it.
pub(crate) struct State {
    pub options: ServerOptions,
    pub metrics: Arc<Metrics>,
    /// Choices that may run or wait.
    pub places: Arc<Semaphore>,
    served: OnceLock<Arc<Served>>,
    /// Long texts that are worked on at once, apart from the engine.
    texts: Semaphore,
    /// `None` when no more jobs are taken.
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    broken: AtomicBool,
}

impl State {
    pub fn new(options: ServerOptions, jobs: mpsc::Sender<Job>) -> Self {
        Self {
            metrics: Arc::new(Metrics::new()),
            places: Arc::new(Semaphore::new(options.parallel + options.queue)),
            options,
            served: OnceLock::new(),
            texts: Semaphore::new(2),
            jobs: Mutex::new(Some(jobs)),
            broken: AtomicBool::new(false),
        }
    }

    /// The model is there.
    pub fn loaded(&self, served: Served) {
        self.served.set(Arc::new(served)).expect("a server loads once");
    }

    /// What is served.
    pub fn served(&self) -> Result<&Arc<Served>, ApiError> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(ApiError::internal("the engine has failed"));
        }
        self.served
            .get()
            .ok_or_else(|| ApiError::unavailable("the model is being loaded").code("loading"))
    }

    /// Does what takes its time, as templates and long texts do, apart from the thread that all connections share.
    pub async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Served) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let served = Arc::clone(self.served()?);
        let _one = self.texts.acquire().await;
        let done = tokio::task::spawn_blocking(move || work(&served)).await;
        done.map_err(|_| ApiError::internal("a text could not be read; see the server's log"))?
    }

    /// Whether new requests are taken.
    pub fn is_open(&self) -> bool {
        self.lock().is_some()
    }

    /// Takes no more requests; those that were taken are answered.
    pub fn close(&self) {
        self.lock().take();
    }

    /// The engine cannot go on.
    pub fn fail(&self) {
        self.broken.store(true, Ordering::Relaxed);
        self.close();
    }

    pub fn send(&self, job: Job) -> Result<(), ApiError> {
        let jobs = self.lock();
        match jobs.as_ref().map(|jobs| jobs.send(job).is_ok()) {
            Some(true) => Ok(()),
            _ => Err(ApiError::unavailable("the server shuts down")),
        }
    }

    /// The queue is full.
    pub fn busy(&self) -> ApiError {
        ApiError::busy(self.metrics.retry_after(self.options.parallel))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<mpsc::Sender<Job>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
