-- One configuration on several kinds of machines: the median over sessions of their median seconds
-- per epoch, and how many times as long it takes as on the fastest kind.
WITH each_session AS (
    SELECT
        dataset, workload, strategy, layout, variant, network, series_sha256, machines, session,
        median(train_seconds_per_epoch) AS seconds
    FROM measurements
    GROUP BY ALL
), each_kind AS (
    SELECT * EXCLUDE (session, seconds), count(*) AS sessions, median(seconds) AS median_seconds
    FROM each_session
    GROUP BY ALL
)
SELECT *, median_seconds / min(median_seconds) OVER (PARTITION BY series_sha256) AS times_the_fastest
FROM each_kind
QUALIFY count(*) OVER (PARTITION BY series_sha256) > 1
ORDER BY dataset, workload, strategy, layout, variant, network, series_sha256, median_seconds
