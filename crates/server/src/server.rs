//! Connections: taken, bounded, and let go.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware;
use axum::routing::{get, post};
use foretoken_spec::TargetModel;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio_io_timeout::TimeoutStream;
use tower_http::cors::{AllowHeaders, CorsLayer};

use crate::error::ApiError;
use crate::options::ServerOptions;
use crate::served::{Loaded, Served};
use crate::state::State;
use crate::worker::Worker;
use crate::{completions, guard, info, page};

/// Connections at once; more wait to be taken.
const MOST_CONNECTIONS: usize = 1024;
/// A request's head must have come after this time; a connection that is quiet for longer between requests is closed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// A client that takes nothing of an answer for so long is gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why the server ended before its time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError<E> {
    /// The address cannot be had.
    #[error("{address}: {source}")]
    Listen {
        /// Where to listen.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// A system resource is missing.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// The model could not be loaded.
    #[error(transparent)]
    Load(E),
    /// The engine failed: a fault of foretoken's own.
    #[error("the engine failed")]
    Engine,
}

/// Listens, loads the model on the engine's thread, and serves it until a signal asks for the end (SIGTERM or Ctrl-C).
/// Requests that were taken are answered first; a second signal ends the process at once. `listening` is told the address
/// before the model is loaded; until then all but `/health` and `/metrics` answer that it is not there yet.
///
/// # Errors
/// An address that cannot be had, a model that cannot be loaded, an engine that failed.
pub fn serve<M, E>(
    options: ServerOptions,
    load: impl FnOnce() -> Result<Loaded<M>, E> + Send + 'static,
    listening: impl FnOnce(SocketAddr),
) -> Result<(), ServeError<E>>
where
    M: TargetModel + Send + 'static,
    E: std::error::Error + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let address = options.address;
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| ServeError::Listen { address, source })?;
        listening(listener.local_addr()?);
        let (sender, jobs) = mpsc::channel();
        let state = Arc::new(State::new(options, sender));
        let (tell, mut outcome) = oneshot::channel();
        let engine = std::thread::Builder::new().name("engine".into());
        engine.spawn({
            let state = Arc::clone(&state);
            move || {
                let run = || {
                    let loaded = load().map_err(ServeError::Load)?;
                    let (served, engine) = Served::new(loaded);
                    tracing::info!(model = served.name, fingerprint = served.fingerprint, "serving");
                    state.loaded(served);
                    Worker::new(engine, jobs, state.options.parallel, Arc::clone(&state.metrics)).run();
                    Ok(())
                };
                // A panic is a fault of ours; what the engine holds then cannot be trusted.
                let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(ServeError::Engine));
                if outcome.is_err() {
                    state.fail();
                }
                let _ = tell.send(outcome);
            }
        })?;
        let (connections, ended) = accept(listener, &state, &mut outcome).await?;
        state.close();
        // Whoever was taken is answered; a second signal does not wait for that.
        let all = async {
            connections.shutdown().await;
            match ended {
                Some(outcome) => outcome,
                None => outcome.await.unwrap_or(Err(ServeError::Engine)),
            }
        };
        tokio::select! {
            outcome = all => outcome,
            () = terminated()? => {
                tracing::warn!("stopped before all requests were answered");
                std::process::exit(130);
            }
        }
    })
}

/// How the engine's thread ended.
type Outcome<E> = Result<(), ServeError<E>>;

/// Serves connections until a signal comes, or the engine ends.
async fn accept<E>(
    listener: TcpListener,
    state: &Arc<State>,
    outcome: &mut oneshot::Receiver<Outcome<E>>,
) -> std::io::Result<(GracefulShutdown, Option<Outcome<E>>)> {
    let service = TowerToHyperService::new(router(state));
    let connections = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let terminated = terminated()?;
    tokio::pin!(terminated);
    loop {
        let taken = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (connection, place) = tokio::select! {
            taken = taken => taken,
            () = &mut terminated => {
                tracing::info!("shutting down: requests that were taken are answered first");
                return Ok((connections, None));
            }
            ended = &mut *outcome => {
                return Ok((connections, Some(ended.unwrap_or(Err(ServeError::Engine)))));
            }
        };
        let stream = match connection {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file handles, for one: not for ever.
                tracing::warn!(%error, "a connection was not taken");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        let served = connections.watch(http.serve_connection(bounded(stream), service.clone()));
        tokio::spawn(async move {
            if let Err(error) = served.await {
                tracing::debug!(%error, "a connection broke off");
            }
            drop(place);
        });
    }
}

/// A connection that ends if the other side takes nothing for long.
fn bounded(stream: TcpStream) -> TokioIo<std::pin::Pin<Box<TimeoutStream<TcpStream>>>> {
    // Tokens go out as they come.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    TokioIo::new(Box::pin(stream))
}

/// Ends when a signal asks for the end of the process.
fn terminated() -> std::io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    Ok(async move {
        #[cfg(unix)]
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = term.recv() => {}
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
    })
}

/// Every path that is served. The description in `openapi.json` has the same.
fn router(state: &Arc<State>) -> Router {
    let missing = || async { ApiError::refused(StatusCode::NOT_FOUND, "there is nothing at this path") };
    let wrong =
        || async { ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "this path has another method") };
    let router = Router::new()
        .route("/", get(page::index))
        .route("/page/{file}", get(page::file))
        .route("/health", get(info::health))
        .route("/metrics", get(info::metrics))
        .route("/openapi.json", get(info::openapi))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{model}", get(info::model))
        .route("/v1/chat/completions", post(completions::chat))
        .route("/v1/completions", post(completions::text))
        .route("/tokenize", post(info::tokenize))
        .route("/detokenize", post(info::detokenize))
        .fallback(missing)
        .method_not_allowed_fallback(wrong)
        .with_state(Arc::clone(state));
    let router = router.layer(middleware::from_fn_with_state(Arc::clone(state), guard::guard));
    // Outermost: a browser asks for leave without a key, and must be able to read refusals.
    match cors(&state.options) {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

/// What pages of allowed origins may do.
fn cors(options: &ServerOptions) -> Option<CorsLayer> {
    let origins: Vec<HeaderValue> = options
        .origins
        .iter()
        .filter_map(|origin| origin.parse().ok())
        .collect();
    (!origins.is_empty()).then(|| {
        CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([HeaderName::from_static("retry-after")])
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// Paths and methods, as the source of the router has them.
    fn routed() -> BTreeSet<(String, String)> {
        let source = include_str!("server.rs");
        let routes = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix(".route(\""));
        routes
            .map(|route| {
                let (path, rest) = route.split_once("\", ").expect("a path and a handler");
                let (method, _) = rest.split_once('(').expect("a method");
                (path.to_string(), method.to_string())
            })
            .collect()
    }

    #[test]
    fn the_description_has_the_paths_that_are_served() {
        let document: serde_json::Value =
            serde_json::from_str(include_str!("../openapi.json")).expect("it is JSON");
        let paths = document["paths"].as_object().expect("it has paths");
        let described = paths.iter().flat_map(|(path, methods)| {
            let methods = methods.as_object().expect("methods");
            methods.keys().map(|method| (path.clone(), method.clone()))
        });
        assert_eq!(described.collect::<BTreeSet<_>>(), routed());
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    }
}
