-- The ledger: intent and decisions, in one file. A state changes only in the transaction that appends its event.
-- A change of this file takes the next VERSION in schema.py, which adds to an older ledger what it lacks: tables, indexes, columns
-- with a default. No column goes, and none changes what it means: an older tpujob still finds what is billed, and ends what is over.
-- What it must leave alone gets a new word in `purpose`, `state` or `held_for`.
create table lease (
  id text primary key,
  handle text not null,
  purpose text not null,
  cloud text not null,
  project text not null,
  zone text not null,
  node text not null unique,           -- never reused: a delete can never hit a later slice of the same name
  queued integer not null default 0,             -- a queued resource of the node's id is part of the slice
  accelerator_type text not null,
  runtime_version text not null,
  provisioning text not null default 'on-demand',
  spot integer not null,
  owner text not null,
  run text,                            -- its cost counts there, also if it was refused or lost a race
  deadline real not null,
  created_at real not null,
  ready_by real,
  usd_per_hour real,
  budget_usd real,
  state text not null,
  hold_until real,
  held_for text,                       -- why it is held: user, results, failure
  detached_at real,
  sent_at real,
  sends integer not null default 1,
  operation text,
  settled integer not null,
  ready_at real,
  down_at real,
  gone_at real,
  reason text not null,
  idle_s real,
  route text not null default '{}',    -- how its workers are reached: core/lease/access.py
  slices integer not null default 1    -- of this type
) strict;
create index lease_open on lease (state) where state not in ('gone', 'forgotten');
create index lease_of_run on lease (run);

create table run (
  id text primary key,
  name text not null,
  job_path text not null,
  cloud text not null,
  created_at real not null,
  directory text not null,
  spec text not null
) strict;

create table sweep (
  id text primary key,
  name text not null,
  job_path text not null,
  created_at real not null,
  variants text not null               -- what each variant is; what became of it is in its runs
) strict;

create table attempt (
  id text primary key,
  run_id text not null references run (id),
  lease_id text references lease (id),
  state text not null,
  rc integer,
  detail text not null,
  started_at real,
  ended_at real,
  exit_code integer,
  error text not null default '',      -- the class of the error that ended it, and its hint
  hint text not null default ''
) strict;
create index attempt_of_run on attempt (run_id);

create table event (
  seq integer primary key autoincrement,
  at real not null,
  subject text not null,               -- id of a lease, an attempt or a sweep
  kind text not null,
  data text not null
) strict;
create index event_of on event (subject, seq);

create table gc_run (
  at real not null,
  cloud text not null,
  project text not null,
  scope text not null,                 -- `local`, or the zones, comma-separated, or `all`
  complete integer not null,
  found integer not null,
  deleted integer not null
) strict;

-- Where this boot of the machine lies on the time of the ledger, for each cloud (core/lease/timekeeping.py).
create table anchor (
  cloud text primary key,
  boot text not null,
  zero real not null,
  sure integer not null,
  ahead_s real
) strict;

-- Which tpujob brought the ledger to which version of this file.
create table written (
  schema integer primary key,
  tpujob text not null
) strict;
