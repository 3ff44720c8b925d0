# Genomes, one FASTA file per class, from the source the dataset names.
#
# REQUIRED INPUTS: none, or what the source names: a folder, or NCBI over the network.
# OUTPUTS:
#   results/{experiment}/data/{dataset}/sequences/{class}.fasta
#   results/{experiment}/data/{dataset}/lock.tsv    class, accession, length and SHA-256 of each
#
# The lock file tells a year later whether the same config still gives the same sequences.


rule genomes:
    input:
        source_files,
    output:
        sequences=directory(f"{DATA}/sequences"),
        lock=f"{DATA}/lock.tsv",
    log:
        "results/{experiment}/logs/{dataset}/genomes.log",
    priority: FIRST
    localrule: True
    conda:
        "../envs/prepare.yaml"
    params:
        source=lambda wildcards: json.dumps(dataset(wildcards)["source"]),
        classes=lambda wildcards: dataset(wildcards)["classes"],
    message:
        "Acquire the genomes of {wildcards.dataset}"
    shell:
        """
        python -m scripts.acquire \
            --source {params.source:q} \
            --classes {params.classes:q} \
            --output {output.sequences:q} \
            --lock {output.lock:q} 2>&1 | tee -i {log:q}
        """
