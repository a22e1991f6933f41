-- Version 3: slices that are asked for through a queue, and by which way each was provisioned.
alter table lease add column queued integer not null default 0;  -- a queued resource of the node's id is part of the slice
alter table lease add column provisioning text not null default 'on-demand';
alter table lease add column ready_by real;
update lease set provisioning = 'spot' where spot;
