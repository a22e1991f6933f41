-- Version 1. One file is the truth about intent and decisions. A state changes only in the transaction that adds its event.
create table lease (
  id text primary key,
  handle text not null,
  purpose text not null,
  cloud text not null,
  project text not null,
  zone text not null,
  node text not null unique,           -- never reused: a delete can never hit a later slice of the same name
  accelerator_type text not null,
  runtime_version text not null,
  spot integer not null,
  owner text not null,
  deadline real not null,
  created_at real not null,
  usd_per_hour real,
  state text not null,
  hold_until real,
  sent_at real,
  sends integer not null,
  operation text,
  settled integer not null,
  ready_at real,
  down_at real,
  gone_at real,
  reason text not null
) strict;
create index lease_open on lease (state) where state <> 'gone';

create table run (
  id text primary key,
  name text not null,
  job_path text not null,
  cloud text not null,
  created_at real not null,
  directory text not null,
  spec text not null
) strict;

create table attempt (
  id text primary key,
  run_id text not null references run (id),
  lease_id text references lease (id),
  state text not null,
  rc integer,
  detail text not null,
  started_at real,
  ended_at real
) strict;
create index attempt_of_run on attempt (run_id);

create table event (
  seq integer primary key autoincrement,
  at real not null,
  subject text not null,               -- id of a lease or an attempt
  kind text not null,
  data text not null
) strict;
create index event_of on event (subject, seq);
