//! TCP and UDP traffic without the library, for tests of the network itself.

use super::command_words::CommandWords;
use super::{COMMAND_TIMEOUT, CommandOutcome, success};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// The status if the operating system reported an error or the received bytes were wrong.
const TRAFFIC_FAILED: i32 = -998;

/// The length of a datagram in bytes; it contains its number.
const DATAGRAM_BYTES: usize = 4;

/// The open sockets of a worker.
#[derive(Debug, Default)]
pub(super) struct RawTraffic {
    listener: Option<TcpListener>,
    datagrams: Option<UdpSocket>,
    /// Idle connections that stay open.
    idle_connections: Vec<TcpStream>,
}

impl RawTraffic {
    /// Executes a command:
    ///
    /// * `listen ADDRESS` and `echo`: sends all data of the next connection back.
    /// * `exchange ADDRESS BYTES TIMES`: sends data and waits until it is back, TIMES times over
    ///   one connection. The message is the shortest round trip in microseconds.
    /// * `bind ADDRESS` and `receive COUNT`: receives datagrams until one has a number of at least
    ///   COUNT. The message lists the numbers below COUNT.
    /// * `datagrams ADDRESS COUNT`: sends COUNT datagrams.
    /// * `knock ADDRESS BYTES TIMES`: opens TIMES connections as soon as the address has a
    ///   listener, and sends BYTES garbage bytes on each. The peer must close the connection; with
    ///   0 bytes it stays open.
    pub(super) fn run_command(&mut self, words: &CommandWords<'_>) -> CommandOutcome {
        let done = match words.verb() {
            "listen" => TcpListener::bind(words.at(0)).map(|listener| {
                self.listener = Some(listener);
                String::new()
            }),
            "bind" => UdpSocket::bind(words.at(0)).map(|socket| {
                self.datagrams = Some(socket);
                String::new()
            }),
            "echo" => echo_connection(self.listener.as_ref().unwrap()),
            "exchange" => {
                let times = words.at(2).parse().unwrap();
                measure_round_trips(words.at(0), words.at(1).parse().unwrap(), times)
            }
            "knock" => {
                let times = words.at(2).parse().unwrap();
                self.send_garbage(words.at(0), words.at(1).parse().unwrap(), times)
            }
            "datagrams" => send_datagrams(words.at(0), words.at(1).parse().unwrap()),
            _ => receive_datagrams(self.datagrams.as_ref().unwrap(), words.at(0).parse().unwrap()),
        };
        done.map_or_else(|cause| (TRAFFIC_FAILED, cause.to_string()), |text| (success().0, text))
    }
}

impl RawTraffic {
    fn send_garbage(&mut self, address: &str, count: usize, times: usize) -> io::Result<String> {
        let rubbish: Vec<u8> = (0_u8..=250).cycle().take(count).collect();
        for _ in 0..times {
            let mut stream = connect_once_possible(address)?;
            prepare(&stream)?;
            if count == 0 {
                self.idle_connections.push(stream);
                continue;
            }
            // If the peer closes the connection during the write, the error is expected.
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

/// Connects, and tries again while the address has no listener.
fn connect_once_possible(address: &str) -> io::Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Err(cause)
                if cause.kind() == io::ErrorKind::ConnectionRefused
                    && began.elapsed() < COMMAND_TIMEOUT =>
            {
                thread::sleep(Duration::from_millis(1));
            }
            outcome => return outcome,
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(COMMAND_TIMEOUT))?;
    stream.set_write_timeout(Some(COMMAND_TIMEOUT))
}

fn echo_connection(listener: &TcpListener) -> io::Result<String> {
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

fn measure_round_trips(address: &str, count: usize, times: usize) -> io::Result<String> {
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    let mut stream = TcpStream::connect_timeout(&address, COMMAND_TIMEOUT)?;
    prepare(&stream)?;
    // Neighbouring blocks of any size differ, since the period of 251 bytes and 256 have no common
    // factor.
    let sent: Vec<u8> = (0_u8..=250).cycle().take(count).collect();
    let mut back = vec![0; count];
    let mut fastest = Duration::MAX;
    for _ in 0..times {
        let began = Instant::now();
        let mut writer = stream.try_clone()?;
        thread::scope(|scope| {
            // A concurrent write avoids a deadlock: if both sides only write, both buffers fill up.
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

fn send_datagrams(address: &str, count: u32) -> io::Result<String> {
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    for number in 0..count {
        socket.send_to(&number.to_le_bytes(), address)?;
    }
    Ok(String::new())
}

fn receive_datagrams(socket: &UdpSocket, count: u32) -> io::Result<String> {
    socket.set_read_timeout(Some(COMMAND_TIMEOUT))?;
    let mut numbers = Vec::new();
    loop {
        let mut bytes = [0; DATAGRAM_BYTES];
        socket.recv(&mut bytes)?;
        let number = u32::from_le_bytes(bytes);
        if number >= count {
            return Ok(numbers.join(" "));
        }
        numbers.push(number.to_string());
    }
}
