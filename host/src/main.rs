//! The `salvage` binary: reads the command line and the settings, builds the adapters, hands them to a command.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use salvage::cli::{Accept, CapturesCommand, Cli, Command, Exit, HandlerCommand};
use salvage::command::accept::{self, Operator};
use salvage::command::handler::diff::Corpus;
use salvage::command::handler::{check, diff, new, replay, test};
use salvage::command::once::Show;
use salvage::command::{self, CommandError, explain, history};
use salvage::config::{self, Config, ConfigError, Drawing, OfflineConfig};
use salvage::host::{self, Host, HostError, database, load_handlers};
use salvage::pass::Mode;
use salvage::ports::Word;
use salvage::reload::KeepUp;
use salvage::stop::{Stop, StopSwitch, stop};
use salvage::wasm::{Loader, Registry, Running, running};
use salvage::{schedule, telemetry};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let cli = Cli::parse();
    // On one thread: a pass is one task, and with more of them each reply would wake first the one that reads and then this
    // one. Only what is compiled is compiled beside it.
    let answered = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Into::into);
    let answered = answered.and_then(|runtime| {
        let answered = runtime.block_on(answer(cli));
        // What is still being compiled is of no use any more, and nobody waits for it.
        runtime.shutdown_background();
        answered
    });
    match answered {
        Ok(exit) => exit.into(),
        Err(error) => tell(&error).into(),
    }
}

/// Says once why the process ends, and returns its code.
fn tell(error: &anyhow::Error) -> Exit {
    if let Some(error) = error.downcast_ref::<ConfigError>() {
        last_words(&error.render(Drawing::for_stderr()));
        return Exit::Config;
    }
    if error.downcast_ref::<CommandError>().is_some_and(CommandError::is_closed_output) {
        // Whoever reads has heard enough, as `head` has: what was to be done was done before it was told.
        return Exit::Done;
    }
    last_words(&format!("error: {}\n", salvage_core::text::lines(&format!("{error:#}"))));
    if error.is::<HostError>() { Exit::Config } else { Exit::Failed }
}

/// On stderr, before or after logging. If nobody reads there, there is nobody to tell that either.
fn last_words(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

async fn answer(cli: Cli) -> anyhow::Result<Exit> {
    let file = cli.config.as_deref();
    if let Command::Handler(command) = cli.command {
        let config = config::load_offline(file, std::env::vars_os())?;
        telemetry::init(config.log.format);
        return handler(&config, command).await;
    }
    let config = config::load(file, std::env::vars_os())?;
    telemetry::init(config.log.format);
    config.notes.iter().for_each(|note| tracing::info!("{note}"));
    if matches!(cli.command, Command::Migrate | Command::History { .. } | Command::Captures(_)) {
        let host = Host::new(&config, Registry::empty())?;
        return Ok(without_handlers(&host, &config, cli.command).await?);
    }
    let (switch, stop) = stop();
    if matches!(cli.command, Command::Run | Command::Once { .. }) {
        // Before anything that takes time: from here on SIGTERM ends the process in order.
        listen(switch)?;
    }
    if matches!(cli.command, Command::Run) {
        return run(config, cli.config, &stop).await;
    }
    let Some(handlers) = unless_stopped(&stop, load_handlers(&config.handlers)).await else {
        return Ok(Exit::Done);
    };
    let host = Host::new(&config, handlers?)?;
    Ok(with_host(&host, &config, cli.command, &stop).await?)
}

async fn with_host(
    host: &Host,
    config: &Config,
    command: Command,
    stop: &Stop,
) -> Result<Exit, CommandError> {
    match command {
        Command::Once { dry_run, part, output } => {
            let mode = if dry_run { Mode::DryRun } else { Mode::Act };
            once(host, config, mode, &Show { part, payload: false, json: output.json }, stop).await
        }
        Command::Plan { part, payload, output } => {
            once(host, config, Mode::DryRun, &Show { part, payload, json: output.json }, stop).await
        }
        Command::Explain { source, id, payload, output } => {
            let show = explain::Show { payload, json: output.json };
            explain::explain(host, &config.pass, (&source, &id), show, stop).await
        }
        Command::Doctor { create_indexes, output } => {
            let running = running_host(&config.handlers);
            command::doctor::doctor(host, &config.pass, running.as_ref(), create_indexes, output.json).await
        }
        Command::Accept(what) => accept(host, config, &what).await,
        Command::Run
        | Command::Migrate
        | Command::History { .. }
        | Command::Captures(_)
        | Command::Handler(_) => {
            unreachable!("answered without handlers, without a host, or by one whose handlers change")
        }
    }
}

async fn accept(host: &Host, config: &Config, asked: &Accept) -> Result<Exit, CommandError> {
    let who = operator();
    let operator = Operator { who: &who, is_sure: asked.yes };
    if asked.list {
        return accept::list(host, asked.output.json).await;
    }
    if asked.revoke {
        return accept::revoke(host, &words(asked), operator).await;
    }
    if let Some(queue) = &asked.new {
        return accept::new_queue(host, &config.pass, queue, operator).await;
    }
    if let Some(source) = &asked.declaration {
        return accept::declaration(host, source, operator).await;
    }
    if let Some([queue, name]) = asked.foreign.as_deref() {
        return accept::foreign(host, queue, name, operator).await;
    }
    if let Some([queue, entry_id]) = asked.entry.as_deref() {
        return accept::entry(host, queue, entry_id, operator).await;
    }
    if let Some([source, job_id @ ..]) = asked.parked.as_deref() {
        return accept::parked(host, source, job_id.first().map(String::as_str), operator).await;
    }
    accept::queues(host, &config.pass, &asked.queues, operator).await
}

/// What is to be revoked.
fn words(asked: &Accept) -> Vec<Word> {
    let mut words: Vec<Word> =
        asked.queues.iter().map(|queue| Word::Queue { queue: queue.clone() }).collect();
    if let Some([queue, name]) = asked.foreign.as_deref() {
        words.push(Word::Foreign { queue: queue.clone(), name: name.clone() });
    }
    if let Some([queue, entry_id]) = asked.entry.as_deref() {
        words.push(Word::Entry { queue: queue.clone(), entry_id: entry_id.clone() });
    }
    if let Some(source) = &asked.declaration {
        words.push(Word::Declaration { source: source.clone(), digest: String::new() });
    }
    words
}

/// Passes until SIGTERM, and beside them a look at what changes.
async fn run(config: Config, file: Option<PathBuf>, stop: &Stop) -> anyhow::Result<Exit> {
    let hangup = signal(SignalKind::hangup())?;
    let runtime = host::runtime(&config.handlers)?;
    let loading = Loader::start(&runtime, host::terms(&config.handlers));
    let Some(mut loader) = unless_stopped(stop, loading).await else { return Ok(Exit::Done) };
    let handlers = loader.settle();
    loader.confirm();
    host::warn_of_idle_sections(&config.handlers, &handlers);
    handlers.log_reports();
    let host = Host::new(&config, handlers)?;
    let (pass, explicit) = (config.pass.clone(), file.clone());
    let keep_up = KeepUp {
        live: Arc::clone(&host.handlers),
        postgres: host.postgres.clone(),
        loader,
        config,
        file: file.unwrap_or_else(|| config::FILE_DEFAULT.into()),
        read: Box::new(move || config::load(explicit.as_deref(), std::env::vars_os())),
    };
    let beside = tokio::spawn(keep_up.run(hangup, stop.clone()));
    schedule::run(&host, &pass, stop).await;
    beside.abort();
    Ok(Exit::Done)
}

/// Loads handlers, which takes up to seconds for each; `None` if the end is asked for meanwhile.
async fn unless_stopped<T>(stop: &Stop, loading: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = stop.requested() => {
            tracing::info!("stopped before all handlers were loaded");
            None
        }
        loaded = loading => Some(loaded),
    }
}

/// What needs no handler does not wait until they are compiled.
async fn without_handlers(host: &Host, config: &Config, command: Command) -> Result<Exit, CommandError> {
    match command {
        Command::History { jobs: true, limit, source, since, output } => {
            history::jobs(host, limit, source.as_deref(), since, output.json).await
        }
        Command::History { limit, output, .. } => history::history(host, limit, output.json).await,
        Command::Captures(CapturesCommand::Purge { handler }) => {
            command::captures::purge(&host.postgres, &config.handlers, handler.as_deref()).await
        }
        _ => command::migrate::migrate(&host.postgres).await,
    }
}

async fn once(
    host: &Host,
    config: &Config,
    mode: Mode,
    show: &Show,
    stop: &Stop,
) -> Result<Exit, CommandError> {
    let handlers = host.handlers.now();
    handlers.log_reports();
    command::once::once(host, &handlers, &config.pass, mode, show, stop).await
}

async fn handler(config: &OfflineConfig, command: HandlerCommand) -> anyhow::Result<Exit> {
    match command {
        HandlerCommand::List { output } => {
            let handlers = load_handlers(&config.handlers).await?;
            let running = running_host(&config.handlers);
            Ok(command::handler::list(&handlers, running.as_ref(), output.json)?)
        }
        HandlerCommand::New { name, lang } => Ok(new::new(&name, lang)?),
        HandlerCommand::Check { file, output } => {
            let database = config.database.as_ref().map(database).transpose()?;
            Ok(check::check(config, database.as_ref(), &file, output.json).await?)
        }
        HandlerCommand::Test { file, cases, accept, output } => {
            Ok(test::test(config, &file, &cases, accept, output.json).await?)
        }
        HandlerCommand::Diff { old, new, cases, captured, asked, output } => {
            let database = config.database.as_ref().map(database).transpose()?;
            let corpus = if captured {
                Corpus::Captured(database.as_ref(), asked.limit)
            } else {
                Corpus::Cases(&cases)
            };
            Ok(diff::diff(config, &old, &new, corpus, output.json).await?)
        }
        HandlerCommand::Replay { file, asked, output } => {
            let database = config.database.as_ref().map(database).transpose()?;
            Ok(replay::replay(config, database.as_ref(), &file, asked.limit, output.json).await?)
        }
    }
}

/// What a host tells that runs on this machine with these settings.
fn running_host(config: &config::Handlers) -> Option<Running> {
    running(config.cache_dir.as_deref()?, &config.dir)
}

/// SIGTERM and SIGINT end the process before its next write.
fn listen(switch: StopSwitch) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("asked to stop: no new act begins");
        switch.request();
    });
    Ok(())
}

/// Who accepts, for the record: the login name and the machine's name, as far as they are known.
fn operator() -> String {
    let user =
        std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "unknown".to_owned());
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{user}@{}", machine.trim())
}
