//! What would happen, without lock or action (F12).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use latchwork_lock::{Capability, Holder, LockStrategy};
use serde::Serialize;

use crate::error::Chain;
use crate::{AnyGate, GateContext, GateVerdict, Result, State, StateMachine};

/// What a transition would meet. Gates are asked, nothing is locked, no action runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// What each gate says now, in order; those before an action name it.
    pub gates: Vec<GateForecast>,
    /// The actions, in order, with whether each would run.
    pub actions: Vec<ActionForecast>,
    /// The key that would be locked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_key: Option<String>,
    /// Somebody who holds it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
}

/// What a gate would say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GateForecast {
    /// The gate.
    pub gate: Arc<str>,
    /// The action that it stands before; none for a gate of the whole transition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Arc<str>>,
    /// What it says; none when it failed.
    pub verdict: Option<GateVerdict>,
    /// Why, where it does not allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What would become of an action. Its gate was asked about the state as it is now; an action before
/// it may change that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActionForecast {
    /// The action.
    pub action: Arc<str>,
    /// Whether it would run, as things stand.
    pub would_run: bool,
}

impl Forecast {
    /// Whether no gate of the transition refuses it. Who holds the lock does not count.
    pub fn is_allowed(&self) -> bool {
        self.blockers().next().is_none()
    }

    /// Whether there would be nothing left to do.
    pub fn is_done_already(&self) -> bool {
        let skips = |gate: &GateForecast| gate.verdict == Some(GateVerdict::SkipIdempotent);
        self.is_allowed() && self.gates.iter().any(|gate| gate.action.is_none() && skips(gate))
    }

    /// The gates of the transition that would refuse it, or failed.
    pub fn blockers(&self) -> impl Iterator<Item = &GateForecast> {
        let blocks = |gate: &&GateForecast| {
            gate.action.is_none() && matches!(gate.verdict, Some(GateVerdict::Deny) | None)
        };
        self.gates.iter().filter(blocks)
    }
}

impl<S: State> StateMachine<S> {
    /// Whether the gates of the transition would let it through now, without lock or action.
    /// [`dry_run`](Self::dry_run) says why not.
    ///
    /// # Errors
    /// Those of the configuration provider.
    pub async fn can(&self, state: &S, delta: &S::Delta) -> Result<bool> {
        let script = self.inner().configured_for(state, delta).await?;
        for gate in &script.gates {
            if let Some(GateVerdict::Deny) | None =
                forecast_gate(gate, None, state, delta).await.verdict
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What would happen: every gate's answer with its reason, the actions, and who holds the lock.
    /// Nothing is locked, no action runs, nobody is told.
    ///
    /// # Errors
    /// Those of the configuration provider, of the key provider, and of the lock's backend.
    pub async fn dry_run(&self, state: &S, delta: &S::Delta) -> Result<Forecast> {
        let script = self.inner().configured_for(state, delta).await?;
        let mut gates = Vec::new();
        for gate in &script.gates {
            gates.push(forecast_gate(gate, None, state, delta).await);
        }
        let mut actions = Vec::new();
        for action in &script.actions {
            let mut would_run = true;
            if let Some(gate) = &action.gate {
                let said = forecast_gate(gate, Some(&action.name), state, delta).await;
                would_run = said.verdict == Some(GateVerdict::Allow);
                gates.push(said);
            }
            actions.push(ActionForecast { action: action.name.clone(), would_run });
        }
        let mut forecast = Forecast { gates, actions, lock_key: None, holder: None };
        if let Some(locking) = &self.inner().locking
            && locking.config.strategy != LockStrategy::None
        {
            let key = locking.keys.lock_key(state, delta)?;
            if locking.locks.capabilities().has(Capability::Inspect) {
                let found = locking.locks.inspect(key.as_str()).await?;
                forecast.holder = found.holders.into_iter().next();
            }
            forecast.lock_key = Some(key.to_string());
        }
        Ok(forecast)
    }
}

async fn forecast_gate<S: State>(
    gate: &AnyGate<S>,
    action: Option<&Arc<str>>,
    state: &S,
    delta: &S::Delta,
) -> GateForecast {
    let at = GateContext { state, delta };
    let asked = AssertUnwindSafe(async {
        match gate.evaluate_now(at) {
            Some(answer) => answer,
            None => gate.evaluate(at).await,
        }
    });
    let (verdict, message) = match asked.catch_unwind().await {
        Ok(Ok(result)) => (Some(result.verdict()), result.message().map(str::to_owned)),
        Ok(Err(error)) => (None, Some(format!("it failed: {}", Chain(&*error)))),
        Err(_) => (None, Some("it panicked".to_owned())),
    };
    GateForecast { gate: gate.name.clone(), action: action.cloned(), verdict, message }
}
