//! Traffic without the library: what a network itself does to streams and datagrams.

use super::words::Words;
use super::{LIMIT, Outcome, success};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// What a call comes back with that the operating system has refused, or that brought wrong bytes.
const FAILED: i32 = -998;

/// The bytes of a datagram: its number.
const DATAGRAM: usize = 4;

/// The sockets of a worker that are waiting to be used.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    listener: Option<TcpListener>,
    datagrams: Option<UdpSocket>,
    /// Connections on which nothing is said.
    silent: Vec<TcpStream>,
}

impl Traffic {
    /// `listen ADDRESS` and `echo`: sends back all that comes over the next connection. `exchange
    /// ADDRESS BYTES TIMES`: sends so many bytes over one connection and waits until they are back,
    /// so many times; the message is the microseconds of the fastest time. `bind ADDRESS` and
    /// `receive COUNT`: the message has the numbers below `COUNT` of the datagrams that come before
    /// one that has a number from there on. `datagrams ADDRESS COUNT` sends so many. `knock ADDRESS
    /// BYTES TIMES`: so many connections, as soon as somebody listens there. On each go so many
    /// bytes that mean nothing, and the other side must end it; with 0 bytes it stays open.
    pub(super) fn carry_out(&mut self, words: &Words<'_>) -> Outcome {
        let done = match words.verb() {
            "listen" => TcpListener::bind(words.at(0)).map(|listener| {
                self.listener = Some(listener);
                String::new()
            }),
            "bind" => UdpSocket::bind(words.at(0)).map(|socket| {
                self.datagrams = Some(socket);
                String::new()
            }),
            "echo" => echo(self.listener.as_ref().unwrap()),
            "exchange" => {
                let times = words.at(2).parse().unwrap();
                exchange(words.at(0), words.at(1).parse().unwrap(), times)
            }
            "knock" => {
                let times = words.at(2).parse().unwrap();
                self.knock(words.at(0), words.at(1).parse().unwrap(), times)
            }
            "datagrams" => send(words.at(0), words.at(1).parse().unwrap()),
            _ => receive(self.datagrams.as_ref().unwrap(), words.at(0).parse().unwrap()),
        };
        done.map_or_else(|cause| (FAILED, cause.to_string()), |text| (success().0, text))
    }
}

impl Traffic {
    fn knock(&mut self, address: &str, count: usize, times: usize) -> io::Result<String> {
        let rubbish: Vec<u8> = (0_u8..=250).cycle().take(count).collect();
        for _ in 0..times {
            let mut stream = connect_once_possible(address)?;
            prepare(&stream)?;
            if count == 0 {
                self.silent.push(stream);
                continue;
            }
            // Who is cut off in the middle of it has what it came for.
            drop(stream.write_all(&rubbish));
            let mut answer = Vec::new();
            match stream.read_to_end(&mut answer) {
                Err(cause) if cause.kind() != io::ErrorKind::ConnectionReset => return Err(cause),
                _ => {}
            }
        }
        Ok(String::new())
    }
}

/// Tries again as long as nobody listens there.
fn connect_once_possible(address: &str) -> io::Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Err(cause)
                if cause.kind() == io::ErrorKind::ConnectionRefused && began.elapsed() < LIMIT =>
            {
                thread::sleep(Duration::from_millis(1));
            }
            outcome => return outcome,
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))
}

fn echo(listener: &TcpListener) -> io::Result<String> {
    let (mut stream, _) = listener.accept()?;
    prepare(&stream)?;
    let mut bytes = vec![0; 1 << 16];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(String::new()),
            count => stream.write_all(&bytes[..count])?,
        }
    }
}

fn exchange(address: &str, count: usize, times: usize) -> io::Result<String> {
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    prepare(&stream)?;
    // No two neighbouring blocks of any size are alike, since the step has no factor in common with
    // 256.
    let sent: Vec<u8> = (0_u8..=250).cycle().take(count).collect();
    let mut back = vec![0; count];
    let mut fastest = Duration::MAX;
    for _ in 0..times {
        let began = Instant::now();
        let mut writer = stream.try_clone()?;
        thread::scope(|scope| {
            // Who does not read while it writes may find that neither side can go on.
            let writing = scope.spawn(|| writer.write_all(&sent));
            let read = stream.read_exact(&mut back);
            writing.join().unwrap().and(read)
        })?;
        fastest = fastest.min(began.elapsed());
        if sent != back {
            return Err(io::Error::other("other bytes have come back than were sent"));
        }
    }
    Ok(fastest.as_micros().to_string())
}

fn send(address: &str, count: u32) -> io::Result<String> {
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    for number in 0..count {
        socket.send_to(&number.to_le_bytes(), address)?;
    }
    Ok(String::new())
}

fn receive(socket: &UdpSocket, count: u32) -> io::Result<String> {
    socket.set_read_timeout(Some(LIMIT))?;
    let mut numbers = Vec::new();
    loop {
        let mut bytes = [0; DATAGRAM];
        socket.recv(&mut bytes)?;
        let number = u32::from_le_bytes(bytes);
        if number >= count {
            return Ok(numbers.join(" "));
        }
        numbers.push(number.to_string());
    }
}
