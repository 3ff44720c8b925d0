-- One configuration under several versions of the packages or of the code, on one kind of machine:
-- when each was first measured, and its median seconds per epoch over sessions.
WITH each_session AS (
    SELECT
        dataset, workload, strategy, layout, variant, network, series_sha256, machines, versions,
        source_sha256, session,
        min(started) AS started,
        median(train_seconds_per_epoch) AS seconds
    FROM measurements
    GROUP BY ALL
), each_version AS (
    SELECT
        * EXCLUDE (session, started, seconds),
        min(started) AS first_started,
        count(*) AS sessions,
        median(seconds) AS median_seconds
    FROM each_session
    GROUP BY ALL
)
SELECT *
FROM each_version
QUALIFY count(*) OVER (PARTITION BY series_sha256, machines) > 1
ORDER BY
    dataset, workload, strategy, layout, variant, network, series_sha256, machines, first_started
