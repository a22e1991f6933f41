-- Version 5: for which run a slice was asked for: its cost counts there, also if it was refused or lost a race.
alter table lease add column run text;
create index lease_of_run on lease (run);
update lease set run = made.run_id
from (select attempt.lease_id, attempt.run_id, run.created_at from attempt join run on run.id = attempt.run_id) as made
where made.lease_id = lease.id and lease.created_at >= made.created_at;  -- an older one was there before
update lease set run = tried.run_id
from (
  select json_extract(event.data, '$.lease_id') as lease_id, attempt.run_id
  from event join attempt on attempt.id = event.subject where event.kind = 'tried'
) as tried
where tried.lease_id = lease.id and lease.run is null;
