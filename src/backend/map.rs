//! Groups for host memory and the memory of a GPU: one back end for each, chosen by where the
//! buffers of a call lie.
//!
//! The part for host memory is a back end as any other. It has what the whole group has in common:
//! who is where, messages, barriers, byte strings, and the group's failure, which the other part's
//! failures become. So a rank that dies ends also what the others wait for on their devices.
//!
//! Names: `cpu:NAME,cuda:nccl`; `nccl` alone is the same with the native back end, but refuses
//! collectives on host memory, which are a mistake there; `cpu:NAME,cuda:NAME` has the part for
//! host memory carry a device's memory too, by way of pinned memory or as it is
//! ([`super::staging`]), and NAME alone is that where a device is named; `default` is
//! `cpu:native,cuda:nccl` where a device is named and all ranks have NCCL, else `native`.

use super::device_part::{Carried, DevicePart, context_of};
use super::nccl::{self, Enqueuer, Nccl, is_for_host, library};
use super::staging::{self, Staging};
use super::{
    Backend, Context, Exchange, Fate, Memory, OpKind, Operation, Place, PointToPoint, Query,
    Wanted, check_one, create_one, registry,
};
use crate::algo::rules::Rule;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{Gpu, Mark};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::device;
use crate::transport::reunion::Port;
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What stands for no name.
pub const DEFAULT: &str = "default";

const NCCL: &str = "nccl";
const NATIVE: &str = "native";

/// A name that means several back ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    cpu: String,
    cuda: Cuda,
}

/// What serves GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cuda {
    /// NCCL, where there is one, else the host.
    IfThere,
    /// The part for host memory.
    Host,
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
            Cuda::Host => write!(f, "cpu:{0},cuda:{0}", self.host()),
            Cuda::Nccl => write!(f, "cpu:{},cuda:{NCCL}", self.host()),
        }
    }
}

/// What a name means, where it is that of no single back end.
///
/// # Errors
/// `InvalidArgument` for a map that is none.
pub fn parse(name: &str) -> Result<Option<Devices>> {
    let native = || NATIVE.to_owned();
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
        (cpu, Some(cuda)) => {
            let cpu = cpu.unwrap_or_else(|| cuda.clone());
            if !is_native(&cuda) && !is_same(&cpu, &cuda) {
                return Err(Error::invalid(format!(
                    "\"{name}\": without NCCL the part for host memory carries the memory of devices, so the map is \"cpu:{cpu},cuda:{cpu}\""
                )));
            }
            Ok(Some(Devices { cpu, cuda: Cuda::Host }))
        }
        _ => Err(wrong(name)),
    }
}

fn wrong(name: &str) -> Error {
    Error::invalid(format!(
        "\"{name}\" is no map of back ends: \"cpu:NAME,cuda:nccl\" is possible, \"cuda:nccl\", or \"cpu:NAME,cuda:NAME\""
    ))
}

fn is_native(name: &str) -> bool {
    registry::known(name) == Some(NATIVE)
}

/// Whether two names are one back end's.
fn is_same(one: &str, other: &str) -> bool {
    let known = |name| registry::known(name);
    one.eq_ignore_ascii_case(other) || known(one).is_some_and(|one| known(other) == Some(one))
}

/// What a name means where a device is named: the back end carries its memory too.
pub(super) fn with_device(name: &str) -> Option<Devices> {
    registry::known(name).map(|cpu| Devices { cpu: cpu.to_owned(), cuda: Cuda::Host })
}

impl Devices {
    /// The back end for host memory.
    pub(super) fn host(&self) -> &str {
        registry::known(&self.cpu).unwrap_or(&self.cpu)
    }

    /// Whether there is all that it needs, as far as this process knows.
    pub(super) fn check(&self) -> Result<()> {
        check_one(&self.cpu)?;
        match self.cuda {
            Cuda::IfThere => Ok(()),
            Cuda::Host => device::driver::get().map(drop),
            Cuda::Nccl | Cuda::Only => library::get().map(drop),
        }
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
    let (nccl_options, rest) = nccl::split(context.options)?;
    let (staging_options, rest) = staging::split(&rest)?;
    // Of a device that NCCL serves it need not know.
    let device = match devices.cuda {
        Cuda::Host => context_of(context).ok().map(|context| context.device()),
        _ => None,
    };
    let for_host = Context { options: &rest, device, ..*context };
    let cpu = create_one(&devices.cpu, &for_host, exchange)?;
    let fate = cpu.fate().ok_or_else(|| {
        let message = format!("the back end {} cannot stand beside another", devices.cpu);
        Error::new(ErrorKind::Unsupported, message)
    })?;
    let map = devices.to_string();
    let meeting = Meeting { context, exchange, cpu: &cpu, fate: &fate, map: &map };
    let part = meeting.part(devices.cuda, nccl_options, staging_options);
    let part = part.inspect_err(|error| {
        exchange.give_up(error);
        fate.fail(error);
    })?;
    let (device, serves) = match &part {
        Ok(part) => (part.device(), if part.is_stream_ordered() { NCCL } else { cpu.name() }),
        // Where none was named there is one.
        Err(_) => (context.device.unwrap_or(0), ""),
    };
    let name = match devices.cuda {
        _ if serves.is_empty() => cpu.name(),
        Cuda::Only => NCCL,
        _ => interned(&format!("cpu:{},cuda:{serves}", cpu.name())),
    };
    Ok(Arc::new(Map { part, name, device, cuda: devices.cuda, serves, cpu }))
}

/// The ranks of a group, on their way to a part for their devices.
struct Meeting<'a> {
    context: &'a Context<'a>,
    exchange: &'a dyn Exchange,
    cpu: &'a Arc<dyn Backend>,
    fate: &'a Arc<dyn Fate>,
    map: &'a str,
}

/// The part for the device; or why there is none, where the group does without.
type Found = std::result::Result<Box<dyn DevicePart>, String>;

impl Meeting<'_> {
    fn part(
        &self,
        cuda: Cuda,
        nccl_options: nccl::Options,
        staging_options: staging::Options,
    ) -> Result<Found> {
        let Self { context, exchange, cpu, fate, map } = *self;
        let is_optional = cuda == Cuda::IfThere;
        let mut lacks = None;
        if cuda != Cuda::Host {
            let wish = nccl::Wish { map, is_optional, options: nccl_options };
            match Nccl::create(context, exchange, (fate, cpu.places()), &wish)? {
                Ok(nccl) => return Ok(Ok(Box::new(nccl))),
                // All ranks know the same.
                Err(why) => lacks = Some(why),
            }
        }
        let wish = staging::Wish { map, is_optional, options: staging_options, instead: lacks };
        match Staging::create(context, exchange, (cpu, fate), &wish)? {
            Ok(staging) => {
                if let Some(why) = &wish.instead {
                    crate::log!(
                        Level::Warn,
                        "group {}: the memory of devices goes through host memory: {why}",
                        context.name
                    );
                }
                Ok(Ok(Box::new(staging)))
            }
            Err(why) => {
                let why = wish.instead.map_or(why.clone(), |first| format!("{first}; and {why}"));
                crate::log!(Level::Warn, "group {} is for host memory only: {why}", context.name);
                Ok(Err(why))
            }
        }
    }
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
    part: Found,
    name: &'static str,
    device: usize,
    cuda: Cuda,
    /// Who serves the device.
    serves: &'static str,
    cpu: Arc<dyn Backend>,
}

impl Map {
    /// The part that serves a device.
    fn on(&self, device: usize, what: &dyn fmt::Display) -> Result<&dyn DevicePart> {
        let refused = |why: String| {
            let message =
                format!("{what} in memory of device {device}: back end {}: {why}", self.name);
            Error::new(ErrorKind::Unsupported, message)
        };
        let part = self.part.as_ref().map_err(|why| refused(why.clone()))?;
        if device == self.device {
            return Ok(part.as_ref());
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

    fn is_stream_ordered(&self) -> bool {
        self.part.as_ref().is_ok_and(|part| part.is_stream_ordered())
    }

    fn mark(&self, gpu: Gpu) -> Result<Option<Arc<dyn Mark>>> {
        self.on(gpu.device, &"a call")?.mark(gpu)
    }

    fn carried(&self) -> Option<&dyn Carried> {
        self.part.as_ref().ok()?.carried()
    }

    fn enqueuer(&self) -> Option<Enqueuer<'_>> {
        self.part.as_ref().ok()?.enqueuer()
    }

    fn allocate_on(&self, device: usize, bytes: usize) -> Result<Box<dyn Memory>> {
        self.on(device, &format!("{bytes} bytes"))?.allocate(bytes)
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        self.cpu.allocate(bytes)
    }

    fn abort(&self, reason: &Error) {
        self.cpu.abort(reason);
        if let Ok(part) = &self.part {
            part.look_around();
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
        let cuda = match &self.part {
            Ok(part) => part.describe(),
            Err(why) => json!({ "missing": why }),
        };
        json!({
            "cpu": { "backend": self.cpu.name(), "details": self.cpu.describe() },
            "cuda": { "backend": if self.serves.is_empty() { "none" } else { self.serves }, "details": cuda },
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
        for name in ["cuda:native", "cuda:Gloo,cpu:NATIVE"] {
            assert_eq!(of(name).as_deref(), Some("cpu:native,cuda:native"));
        }
        for name in ["cpu:other,cuda:native", "cuda:other", "cpu:other, cuda:OTHER"] {
            assert_eq!(of(name).as_deref(), Some("cpu:other,cuda:other"));
        }
        for wrong in [
            "cpu:native",
            "cpu:native,cuda:other",
            "cpu:other,cuda:another",
            "cpu:a,cpu:b",
            "xpu:nccl,cpu:native",
            "a,b",
            ":",
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.message().contains(wrong), "{error}");
        }
        for name in ["cpu:unheard-of,cuda:nccl", "cuda:unheard-of"] {
            let unknown = parse(name).unwrap().unwrap().check().unwrap_err();
            assert_eq!(unknown.kind(), ErrorKind::NotFound);
        }
        assert!(with_device("unheard-of").is_none());
        assert_eq!(with_device("Gloo").unwrap().to_string(), "cpu:native,cuda:native");
    }
}
