//! The control sockets: lines of requests as a service reads them, the arguments of the daemon's and the
//! keel's requests, and lines of answers as a client reads them. What is read can be written, and then
//! is read as the same again.

use std::sync::LazyLock;

use evenkeel_control::{Answer, Program, Request, Share};
use evenkeel_host::daemon::{DaemonRequest, Quota};
use evenkeel_keel::{
    Aggregation, Gate, MAX_ROLE, Options, Order, allocation, argument_text, roles_of_request,
};
use evenkeel_machine::Machine;
use serde_json::{Map, Value};

use crate::target::{Target, no_repair, reason};

const CONTROL: Target = Target {
    name: "control",
    words: &[
        "\"req\":\"set\"",
        "\"req\":\"join\"",
        "\"args\":{}",
        "\"pid\":",
        "\"name\":",
        "\"roles\":",
        "\"slice_us\":",
        "\"zone\":",
        "\"errno\":",
        "\"resp\":",
        "true",
        "-2147483648",
        "4194305",
        "[0,2]",
    ],
    repair: no_repair,
    read,
};

static MACHINE: LazyLock<Machine> = LazyLock::new(|| Machine::preset("small").unwrap());

fn read(kind: &str, text: &[u8]) -> bool {
    let is_taken = if kind == "requests" { is_request } else { is_answer };
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    // Each line is read, whatever became of the one before.
    let refused = lines.filter(|line| !is_taken(line)).count();
    refused == 0
}

/// Whether a service would carry out the request, as far as the machine does not decide that.
fn is_request(line: &[u8]) -> bool {
    match Request::decode(line) {
        Ok(request) => {
            let written = request.encode();
            assert_eq!(written.iter().filter(|byte| **byte == b'\n').count(), 1);
            let again = Request::decode(&written).unwrap();
            assert_eq!(again.req, request.req);
            assert!(are_same(&again.args, &request.args), "{again:?} is not {request:?}");
            is_of_daemon(&request) | is_of_keel(&request)
        }
        Err(refusal) => {
            assert!(is_answer(&refusal.encode()));
            let (errno, why) = refusal.into_result().unwrap_err();
            assert!(errno > 0);
            reason(why);
            false
        }
    }
}

fn is_of_daemon(request: &Request) -> bool {
    match DaemonRequest::decode(request) {
        Ok(asked) => {
            if let DaemonRequest::JoinNamed(name) = asked {
                match name.parse::<Program>() {
                    Ok(program) => assert_eq!(program.to_string(), name),
                    Err(why) => drop(reason(why)),
                }
            }
            true
        }
        Err(refusal) => {
            reason(refusal);
            false
        }
    }
}

fn is_of_keel(request: &Request) -> bool {
    match request.req.as_str() {
        "ias_agg" => is_aggregation(request),
        "ias_alloc" => roles_of_request(request).map_err(reason).is_ok_and(|roles| {
            let given = allocation(&MACHINE, &roles).map_err(reason);
            assert!(given.is_err() || roles.iter().all(|role| *role <= MAX_ROLE));
            given.is_ok()
        }),
        "set" => is_set(request),
        "get" | "decisions" | "ias_show" => true,
        _ => false,
    }
}

fn is_aggregation(request: &Request) -> bool {
    let parse = |request: &Request| {
        Aggregation::parse(|name| request.args.get(name).map(argument_text)).map_err(reason)
    };
    let aggregation = parse(request);
    if let Ok(aggregation) = aggregation {
        assert_eq!(parse(&aggregation.request()), Ok(aggregation));
        assert!(aggregation.pid > 0 && aggregation.agg <= 1 && aggregation.bonus_type <= 1);
    }
    aggregation.is_ok()
}

/// Whether a keel with all policies takes the parameters of the request. If so, what it then says of its
/// parameters can be set again, and changes nothing.
fn is_set(request: &Request) -> bool {
    let mut options = Options { order: Order::Ias, gate: Gate::Zone, ..Options::default() };
    let set = |options: &mut Options, name: &str, value: &Value| {
        options.set_parameter(name, &argument_text(value)).map_err(reason)
    };
    for (name, value) in &request.args {
        let before = options.parameters();
        if set(&mut options, name, value).is_err() {
            assert_eq!(options.parameters(), before, "a refused value changes nothing");
            return false;
        }
    }
    let parameters = options.parameters();
    for (name, value) in &parameters {
        set(&mut options, name, value).unwrap();
        assert_eq!(options.parameters(), parameters, "{name}");
    }
    true
}

/// Whether arguments are equal, but for the last bit of a fraction, which `serde_json` reads inexactly.
/// No request has a fraction.
fn are_same(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|((a_name, a), (b_name, b))| a_name == b_name && is_same(a, b))
}

fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => are_same(a, b),
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            a.to_bits().abs_diff(b.to_bits()) <= 1
        }
        (a, b) => a == b,
    }
}

fn is_answer(line: &[u8]) -> bool {
    let answer = match Answer::decode(line) {
        Ok(answer) => answer,
        Err(why) => {
            reason(why);
            return false;
        }
    };
    let again = Answer::decode(&answer.encode()).unwrap();
    assert_eq!(again.errno, answer.errno);
    assert!(are_same(&again.args, &answer.args), "{again:?} is not {answer:?}");
    let errno = answer.errno;
    match answer.into_result() {
        Ok(value) => {
            assert_eq!(errno, 0);
            // What `status` shows.
            let shares = serde_json::from_value::<Vec<Share>>(value.clone());
            let quotas = serde_json::from_value::<Vec<Quota>>(value);
            drop((shares.map_err(reason), quotas.map_err(reason)));
        }
        Err((number, _)) => assert!(number == errno && errno != 0),
    }
    true
}

#[test]
fn a_line_is_read_as_it_would_be_written() {
    CONTROL.fuzz();
}
