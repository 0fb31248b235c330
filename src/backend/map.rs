//! Groups for host memory and the memory of a GPU: one back end for each, chosen by where the buffers of a call lie.
//!
//! The part for host memory is a back end as any other. It has what the whole group has in common: who is where, messages,
//! barriers, byte strings, and the group's failure, which the other part's failures become. So a rank that dies ends also what
//! the others wait for on their devices.
//!
//! Names: `cpu:NAME,cuda:nccl`; `nccl` alone is the same with the native back end, but refuses collectives on host memory,
//! which are a mistake there; `default` is `cpu:native,cuda:nccl` where a device is named and all ranks have NCCL.

use super::nccl::{Found, Nccl, Wish, is_for_host, library, split};
use super::{
    Backend, Context, DeviceMessage, Exchange, Fate, Memory, OpKind, Operation, Place,
    PointToPoint, Query, Wanted, check_one, create_one, registry,
};
use crate::algo::rules::Rule;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{Gpu, Launch};
use crate::base::ids::Rank;
use crate::device;
use crate::transport::reunion::Port;
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What stands for no name.
pub const DEFAULT: &str = "default";

const NCCL: &str = "nccl";

/// A name that means several back ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    cpu: String,
    cuda: Cuda,
}

/// What serves GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cuda {
    /// NCCL, where there is one.
    IfThere,
    /// NCCL.
    Nccl,
    /// NCCL, and host memory is only for what the group does by itself.
    Only,
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cuda {
            Cuda::IfThere => f.write_str(DEFAULT),
            Cuda::Only => f.write_str(NCCL),
            Cuda::Nccl => {
                let cpu = registry::known(&self.cpu).unwrap_or(&self.cpu);
                write!(f, "cpu:{cpu},cuda:{NCCL}")
            }
        }
    }
}

/// What a name means, where it is that of no single back end.
///
/// # Errors
/// `InvalidArgument` for a map that is none.
pub fn parse(name: &str) -> Result<Option<Devices>> {
    let native = || registry::known("native").unwrap_or_default().to_owned();
    if name.eq_ignore_ascii_case(DEFAULT) {
        return Ok(Some(Devices { cpu: native(), cuda: Cuda::IfThere }));
    }
    if name.eq_ignore_ascii_case(NCCL) {
        return Ok(Some(Devices { cpu: native(), cuda: Cuda::Only }));
    }
    if !name.contains([':', ',']) {
        return Ok(None);
    }
    let (mut cpu, mut cuda) = (None, None);
    for part in name.split(',') {
        let (device, backend) = part.split_once(':').ok_or_else(|| wrong(name))?;
        let place = match device.trim().to_ascii_lowercase().as_str() {
            "cpu" => &mut cpu,
            "cuda" => &mut cuda,
            _ => return Err(wrong(name)),
        };
        if place.replace(backend.trim().to_owned()).is_some() {
            return Err(wrong(name));
        }
    }
    match (cpu, cuda) {
        (cpu, Some(cuda)) if cuda.eq_ignore_ascii_case(NCCL) => {
            let only = if cpu.is_some() { Cuda::Nccl } else { Cuda::Only };
            Ok(Some(Devices { cpu: cpu.unwrap_or_else(native), cuda: only }))
        }
        _ => Err(wrong(name)),
    }
}

fn wrong(name: &str) -> Error {
    Error::invalid(format!(
        "\"{name}\" is no map of back ends: \"cpu:NAME,cuda:nccl\" is possible, or \"cuda:nccl\""
    ))
}

impl Devices {
    /// Whether there is all that it needs, as far as this process knows.
    pub(super) fn check(&self) -> Result<()> {
        check_one(&self.cpu)?;
        if self.cuda != Cuda::IfThere {
            library::get()?;
        }
        Ok(())
    }
}

/// Makes a group's back ends, together with the other ranks.
pub(super) fn create(
    devices: &Devices,
    context: &Context<'_>,
    exchange: &dyn Exchange,
) -> Result<Arc<dyn Backend>> {
    if devices.cuda == Cuda::IfThere && context.device.is_none() {
        return create_one(&devices.cpu, context, exchange);
    }
    let (options, rest) = split(context.options)?;
    let cpu = create_one(&devices.cpu, &Context { options: &rest, ..*context }, exchange)?;
    let fate = cpu.fate().ok_or_else(|| {
        let message = format!("the back end {} cannot stand beside another", devices.cpu);
        Error::new(ErrorKind::Unsupported, message)
    })?;
    let map = devices.to_string();
    let wish = Wish { map: &map, is_optional: devices.cuda == Cuda::IfThere, options };
    let found = Nccl::create(context, exchange, (&fate, cpu.places()), &wish);
    let nccl = found.inspect_err(|error| {
        exchange.give_up(error);
        fate.fail(error);
    })?;
    let device = match &nccl {
        Ok(nccl) => nccl.device(),
        // Where none was named there is NCCL.
        Err(_) => context.device.unwrap_or(0),
    };
    let name = match &nccl {
        Ok(_) if devices.cuda == Cuda::Only => NCCL,
        Ok(_) => interned(&format!("cpu:{},cuda:{NCCL}", cpu.name())),
        Err(_) => cpu.name(),
    };
    Ok(Arc::new(Map { nccl, name, device, cuda: devices.cuda, cpu }))
}

/// A name that stays: there are as many as maps of registered back ends.
fn interned(name: &str) -> &'static str {
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.iter().find(|known| **known == name) {
        return known;
    }
    let name: &'static str = name.to_owned().leak();
    names.push(name);
    name
}

/// The back ends of one group.
#[derive(Debug)]
struct Map {
    /// First: it ends before the part that has the group's failure. Or why there is none.
    nccl: Found<Nccl>,
    name: &'static str,
    device: usize,
    cuda: Cuda,
    cpu: Arc<dyn Backend>,
}

impl Map {
    /// The part that serves a device.
    fn on(&self, device: usize, what: &dyn fmt::Display) -> Result<&Nccl> {
        let refused = |why: String| {
            let message =
                format!("{what} in memory of device {device}: back end {}: {why}", self.name);
            Error::new(ErrorKind::Unsupported, message)
        };
        let nccl = self.nccl.as_ref().map_err(|why| refused(why.clone()))?;
        if device == self.device {
            return Ok(nccl);
        }
        Err(refused(format!("the group is for device {} on this rank", self.device)))
    }
}

impl Backend for Map {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check_wanted(&self, kind: OpKind, bytes: usize, wanted: Wanted<'_>) -> Result<()> {
        self.cpu.check_wanted(kind, bytes, wanted)
    }

    fn supports(&self, query: &Query) -> Result<()> {
        match query.gpu {
            Some(device) => self.on(device, query)?.supports(query),
            None => {
                if self.cuda == Cuda::Only {
                    is_for_host(query)?;
                }
                self.cpu.supports(query)
            }
        }
    }

    fn is_selective(&self) -> bool {
        true
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        match &operation.launch {
            None => self.cpu.run(operation),
            Some(launch) => {
                self.on(launch.gpu.device, &operation.descriptor)?.run(operation, launch)
            }
        }
    }

    fn messages(&self) -> Option<&dyn PointToPoint> {
        self.cpu.messages()
    }

    fn device(&self) -> Option<usize> {
        Some(self.device)
    }

    fn device_of(&self, address: usize) -> Result<Option<usize>> {
        device::memory::device_of(address)
    }

    fn check_stream(&self, gpu: Gpu) -> Result<()> {
        match gpu.stream {
            Some(stream) => self.on(gpu.device, &"a call")?.check_stream(stream),
            None => Ok(()),
        }
    }

    fn exchange_on_device(
        &self,
        messages: &[DeviceMessage<'_>],
        deadline: &Deadline,
        launch: &Launch<'_>,
    ) -> Result<()> {
        self.on(launch.gpu.device, &"a message")?.exchange(messages, deadline, launch)
    }

    fn allocate_on(&self, device: usize, bytes: usize) -> Result<Box<dyn Memory>> {
        self.on(device, &format!("{bytes} bytes"))?.allocate(bytes)
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        self.cpu.allocate(bytes)
    }

    fn abort(&self, reason: &Error) {
        self.cpu.abort(reason);
        if let Ok(nccl) = &self.nccl {
            nccl.look_around();
        }
    }

    fn failure(&self) -> Option<Error> {
        self.cpu.failure()
    }

    fn fate(&self) -> Option<Arc<dyn Fate>> {
        self.cpu.fate()
    }

    fn port(&self) -> Option<&Arc<Port>> {
        self.cpu.port()
    }

    fn has_left(&self, rank: Rank) -> bool {
        self.cpu.has_left(rank)
    }

    fn places(&self) -> &[Place] {
        self.cpu.places()
    }

    fn last_seen(&self, rank: Rank) -> Option<String> {
        self.cpu.last_seen(rank)
    }

    fn looks_who_is_there(&self) -> bool {
        self.cpu.looks_who_is_there()
    }

    fn overrides(&self) -> &[Rule] {
        self.cpu.overrides()
    }

    fn describe(&self) -> Value {
        let cuda = match &self.nccl {
            Ok(nccl) => nccl.describe(),
            Err(why) => json!({ "missing": why }),
        };
        json!({
            "cpu": { "backend": self.cpu.name(), "says": self.cpu.describe() },
            "cuda": { "backend": NCCL, "says": cuda },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_says_who_serves_which_memory() {
        let of = |name: &str| parse(name).unwrap().map(|devices| devices.to_string());
        assert_eq!(of("native"), None);
        assert_eq!(of("NCCL").as_deref(), Some("nccl"));
        assert_eq!(of("cuda:nccl").as_deref(), Some("nccl"));
        assert_eq!(of("CUDA:NCCL, cpu:Gloo").as_deref(), Some("cpu:native,cuda:nccl"));
        assert_eq!(of("Default").as_deref(), Some("default"));
        for wrong in ["cpu:native", "cuda:native", "cpu:a,cpu:b", "xpu:nccl,cpu:native", "a,b", ":"]
        {
            let error = parse(wrong).unwrap_err();
            assert!(error.message().contains(wrong), "{error}");
        }
        let unknown = parse("cpu:unheard-of,cuda:nccl").unwrap().unwrap().check().unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
    }
}
