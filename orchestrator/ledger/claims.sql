-- Version 2: claims that pass to the job, obligations that a person took over, and when this machine last swept.
alter table lease add column detached_at real;
alter table lease add column budget_usd real;
alter table attempt add column exit_code integer;
drop index lease_open;
create index lease_open on lease (state) where state not in ('gone', 'forgotten');

create table sweep (
  at real not null,
  cloud text not null,
  project text not null,
  scope text not null,                 -- `local`, or the zones, comma-separated, or `all`
  complete integer not null,
  found integer not null,
  deleted integer not null
) strict;
