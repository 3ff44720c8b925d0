-- Hosts of one kind: the median seconds per epoch of runs on one node, and how many times as long
-- it takes as the median of all hosts of the kind. A slow node shows here.
WITH each_host AS (
    SELECT
        dataset, workload, strategy, layout, variant, series_sha256, machines, hosts,
        count(DISTINCT session) AS sessions,
        count(*) AS measurements,
        median(train_seconds_per_epoch) AS median_seconds
    FROM measurements
    WHERE layout LIKE '1x%'
    GROUP BY ALL
)
SELECT
    *,
    median_seconds / median(median_seconds) OVER (PARTITION BY series_sha256, machines)
        AS times_the_median
FROM each_host
QUALIFY count(*) OVER (PARTITION BY series_sha256, machines) > 1
ORDER BY dataset, workload, strategy, layout, variant, series_sha256, machines, median_seconds DESC
